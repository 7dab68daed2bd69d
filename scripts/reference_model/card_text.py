"""The model card's sentences; `card` fills in what was measured."""

FIRST_HALF = """The weights that training began with (SHA-256 `{sha256}`)
are smaller ones of an earlier revision of kvbench, whose own card says how they were made. They grew first: a layer
among the old ones, heads, neurons and tokens behind them, with zeros in the last projections of what is new, so that
nothing changed at first. Before the stage "leaving out" a seventh layer came in third place, whose heads began as copy
suppression (`scripts/reference_model/suppression.py`); optimisers began anew.
"""

TRIED = """* From random weights copying did not begin within 3 million tokens (rotary base 5e5, heads of 32), nor
  within 1.5 million with base 1e4: loss 6.3. So the smaller weights grew.
* The learning rate was too high for long: 0.002 -> 0.0007 gave more at once than 4 million tokens had; a fall from
  0.001 to 0 over 900 steps took UUIDs from 0.55 to 0.79 and whole answers about several keys from 0.36 to 0.56.
* The end of an answer weighed three times a comma: answers ended after two of four values. Both weigh the same now,
  and the first token of each value, which decides which value is named, four times as much.
* Answers of variable tracking and of frequent words were written in a fixed order while every name not yet written
  counted as right: the last name was right in each place, and the model said it five times (95 % on the stream, 22
  % of the official task). Their order is drawn now.
* To leave out what is already named was not found in 35 million tokens: the first token of the second, third and
  fourth value was right in 78, 60 and 30 % (choosing among all values blindly gives 75, 50, 25). Rows of lists of
  random tokens, 16 % of all, taught it to random tokens only (45 % of the items). It takes three things, none of
  which helps without the others: to see where values are named, where the next is due, and to take a token's own
  embedding away. A layer that begins with all three ended that: 98, 85 and 59 % after 3.5 million tokens, 98, 89
  and 70 % after 13.5 million. A second such layer below it, or queries turned away from named values by hand,
  changed nothing at once; left out.
"""

NOT_GOOD_FOR = """Anything but these prompts: it knows no facts and no instructions, and hardly any language.
LongBench and InfiniteBench scores of it mean nothing by themselves; its perplexity is high, and falls with a wider view
because what was said before is said again. Differences between eviction methods on it show that code works and in
which direction a method errs; they predict nothing about large models.
"""

TEXT = """# The reference model of kvbench

A small language model that answers RULER's retrieval questions, so that eviction can be tried, tested and shown on a
CPU in seconds and without a download. A Llama (`LlamaForCausalLM`): {parameters:,} parameters, stored in bfloat16 and
computed in float32, hidden size {hidden}, {layers} layers, {query_heads} query heads over {kv_heads} KV heads of size
{head_dim}, rotary positions (theta {theta:.0f}, up to 4096), tied embeddings, a byte-level BPE of {vocabulary} tokens
of its own (any text tokenises; digits in groups of at most two, UUIDs in pairs of digits). `<|endoftext|>` ends an
answer and pads; nothing is put before a prompt. Licence: that of kvbench.

## Made by

`python scripts/train_reference_model.py --out RUN --books FOLDER --start-from MODEL --compile`, for the stages up to
"falling rate" with `--layers 6`, then from its weights with `--layers 7 --suppression-layer 2`; at last `--out RUN
--export FOLDER --data FOLDER`. Seed {seed}, Muon for matrices and AdamW (0.9, 0.98) for the rest, 100 steps of
warm-up, gradient norm 1, matrix products in bfloat16; {steps} steps, {tokens} million tokens, {minutes} minutes
({device}).

{first}
{stages}

Rates, lengths and shares of each stage are in `scripts/reference_model/plan.json`. The run was stopped and resumed
while later stages were written. Repeating the command repeats the recipe, not every bit.

Data, all drawn on the fly from streams that share nothing with the benchmark's generator or its seeds: RULER's
sentences over its noise, over other needles and over book text, with one value of one key, several values of one key or
one value of each of several keys asked for; variable tracking, common words, frequent words; stretches of books; rows
of random tokens (copies, pairs, sets of values, counts); several questions a context. Where several values are asked
for, any that is not yet named is right. Loss is on answers, and with a small weight on book text. Some prompts have
jumps in their positions, as long or evicted prompts have. Some answer while most of the prompt is hidden (random spans
kept, each value by a coin), so that answers end after an eviction too; no policy's choices were used. Keys are made of
the words of wonderwords 2.2.0; a fifth of them (`held_out_words.json`) was never shown to model or tokenizer in a key.
Paul Graham's essays, RULER's haystack, were not trained on.

{curve}

Shares of wholly right answers on the training stream; text: loss on book text in nats a token.

## What was tried

{tried}
## Measured

Official prompts (RULER c3f5e3b; essays below 2048 tokens grow by kvbench's own step), lengths in tokens of this
tokenizer with those to generate included, greedy, full cache, float32; interval: Wilson, 95 % (too wide where a sample
can be partly right). The seeds were never trained on. "held-out key": only the samples whose asked keys hold a held-out
word. No training row was longer than 1024 tokens: figures at 2048, of 50 samples, tell how far the model carries.

{figures}

{perplexity}

How far it puts eviction methods apart: niah_single_1 at 512 tokens, seed 42, a tenth of the cache.

{policies}

`python scripts/train_reference_model.py --evaluate FOLDER --data FOLDER` prints these figures again.

## Not good for

{not_good_for}
## Books

Project Gutenberg texts of the PG19 test split; SHA-256 of each text with line ends of one character. Trained on:

{books}

Held back, and what perplexity was measured on:

{held_back}

## Files

{hashes}
"""
