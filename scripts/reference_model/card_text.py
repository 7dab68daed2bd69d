"""The model card's sentences; `card` fills in what was measured."""

FIRST_HALF = """The weights that training began with (SHA-256 `{sha256}`)
are smaller ones of an earlier revision of kvbench, whose own card says how they were made. They grew first: new layers
among the old ones, new heads, neurons and tokens behind them, with zeros in the last projections of what is new, so
that nothing changed at first.
"""

TRIED = """* Several values one after another (`7007071, 6088743, ...`), as larger models answer: at step 480, after
  1.8 million tokens, no answer was right, and in those looked at the second value was none of the key's. Since then the
  key is repeated before each value (`rich-reference: 7007071, rich-reference: 6088743, ...`), which makes each a lookup
  that the model already knew: 200 steps later the values named were those of the key. RULER's metric looks for the
  values anywhere in the answer. From step 1040 on the repeated keys weigh 0.3 of the values.
* Several values of one key are not kept apart: the model does not leave out those it has named (at 4.9 million tokens
  an earlier one, the right one and a later one were equally frequent in second place, 24 prompts). The share of such
  rows was 0.3 at most and 0.15 at the end.
* Variable tracking: the first name of a chain is found, the next is not, with 0.1 to 0.15 of the rows for 5 million
  tokens; then its share was cut to 0.03 to 0.05.
* "families faster": all book text of the haystacks learned with weight 0.08 a token, at a higher rate. The loss on text
  only reached that of single tokens' frequencies (5.95 nats) and needles were found less often. Text in haystacks was
  then given less weight, and none from step 1040 on (0.001 in the last stage), while stretches of books alone kept
  theirs: the loss on text fell to 5.4 nats and needles recovered.
* A fifth layer in the middle of the four, which costs a quarter more time, was taken on the guess that answers of
  several values need it; four layers were not trained beside it.
* Needle answers stay near 0.8 on the training stream (up to twelve questions a context, jumps in positions) until the
  learning rate falls: niah_multikey_2 at 512 tokens rose from 0.78 (40 samples, at 3.6 million tokens)
  to 0.94 (48 samples, near the end).
* Time: other work took most of the two cores, so that 1200 to 5000 tokens a second were read; on an idle core the same
  recipe reads about 5000.
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

`python scripts/train_reference_model.py --out RUN --books FOLDER --start-from MODEL --compile`, then `--out RUN
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
word. From 2048 tokens on mostly 50 samples, for lack of time.

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
