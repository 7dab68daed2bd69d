# kvbench: `make` lists what can be asked for.
#
# Everything happens in .venv. A stamp file in it is written after a successful installation only, so that repeats are
# quick; .venv/.unfinished stands while one runs, and an interrupted one is started over from nothing.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?=
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
EXTRAS := dev,docs
LONG_SCRIPTS := benchmarks/many_rows.py benchmarks/hostile_files.py
SCRIPTS ?= $(filter-out $(LONG_SCRIPTS),$(sort $(wildcard benchmarks/*.py)))
PYTEST_ARGS ?= -n 2 -m "not slow"
# The rooms that hold arrays, and tests that call all that the rest of the suite's tests call there. A check of every call
# doubles the time of a test, so that tests which call nothing else are left out, as is most of what repeats a call.
ROOMS_OF_ARRAYS := $(addprefix kvbench.,cache.attention cache.kv_cache cache.shapes cache.kernels.column_sums \
	cache.kernels.ragged_decode eviction.allocation eviction.evict eviction.incremental eviction.pooling eviction.ranking \
	eviction.scores extras.conformance.properties extras.flash.segments extras.gpu_decoding.flat_batch extras.gpu_decoding.flat_layer \
	extras.gpu_decoding.graph_batch extras.gpu_decoding.rooms extras.positions extras.probes.losses extras.probes.oracle_recall extras.probes.query \
	extras.probes.scene extras.probes.table extras.stores.channels extras.stores.floats extras.stores.packed extras.stores.quantized \
	extras.stores.quantized_batch models)
TESTS_OF_ARRAYS := tests/test_conftest.py::test_array_annotations_are_checked_where_they_are_asked_for \
	$(wildcard tests/cache/test_*.py) \
	$(addprefix tests/cache/kernels/test_choice.py::test_,a_growing_layer_is_attended_to_the_same \
		a_repetition_is_recorded_the_same packages_are_asked_for_the_segments) \
	tests/eviction/allocation tests/eviction/scores $(filter-out %/test_matrix.py,$(wildcard tests/eviction/test_*.py)) \
	$(filter-out %/test_command.py,$(wildcard kvbench/extras/probes/tests/test_*.py)) \
	$(addprefix kvbench/extras/probes/tests/test_command.py::test_,a_probe_measures_prints_draws_and_resumes \
		layers_with_windows_of_their_own_have_no_numbers) \
	kvbench/extras/stores/tests/test_quantized.py \
	$(addprefix tests/models/test_evicting_batch.py::test_,cuts_while_decoding_are_those_of_the_oracle \
		without_a_cut_all_is_as_in_transformers evictions_are_the_passes_after_which_pairs_are_lost \
		memory_is_what_is_held_at_most a_cell_that_cannot_be_cut_fails_alone) \
	$(addprefix tests/models/test_,families.py linear_layers.py next_token.py rope.py rotation.py) \
	kvbench/extras/gpu_decoding/tests/test_stacks.py kvbench/extras/positions/tests/test_renumbered.py \
	kvbench/extras/conformance/tests/test_properties.py
FEW_OF_ARRAYS := not (test_properties or keep_all_has_the_logits or without_a_cut) or one_cut and ada_snapkv \
	or snapkv-obcache_joint or gemma3 or gpt_oss or qwen3_next

DEMO := policy=streaming_llm,h2o,snapkv,ada_snapkv score=attn,obcache_joint budget=0.2,0.4,0.6 \
	task=ruler/fwe task.max_new_tokens=24 task.samples=30 results.dir=results/demo

# What the board ranks: all committed rows but those whose labels do not tell their settings apart.
BOARD := $(addprefix results/reference/,main.parquet methods.parquet variants.parquet) \
	$(addprefix results/smollm2/,main.parquet context.parquet settings.parquet)

.PHONY: help pages board demo hashed test test-annotations test-slurm check docs gate gate-smollm2 pictures reference reference-full smollm2 confirm bench compile-kernels gpu-check gpu-first-hour gpu-bundle build release clean constraints

help:  ## say what can be asked for
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  PYTHON=python3.12 chooses the interpreter; PYTEST_ARGS='-k cache' is handed to pytest"

demo: $(VENV)/.installed  ## install, then compare eviction methods on the embedded model (minutes, no GPU, no download)
	@$(BIN)/kvbench run $(DEMO)

test: $(VENV)/.installed-dev  ## install what the tests need and run them
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

test-annotations: $(VENV)/.installed-dev  ## the tests that call the rooms of arrays, with shapes and dtypes of all calls checked
	@$(BIN)/python -m pytest -n 2 -m "not slow" -k "$(FEW_OF_ARRAYS)" --jaxtyping-packages="$$(tr ' ' ',' <<< '$(ROOMS_OF_ARRAYS)'),beartype.beartype" $(TESTS_OF_ARRAYS)

test-slurm: $(VENV)/.installed-dev  ## start a SLURM on this machine and run a sweep on it (Debian, root; 10 minutes)
	@scripts/test_slurm.sh "$(BIN)/python"

check: $(VENV)/.installed-dev  ## lint, format, types, import rules, pinned versions
	@failed=; \
	$(BIN)/ruff check --output-format concise || failed="$$failed ruff-check"; \
	$(BIN)/ruff format --check || failed="$$failed ruff-format"; \
	$(BIN)/pyright --pythonpath $(BIN)/python || failed="$$failed pyright"; \
	$(BIN)/lint-imports || failed="$$failed lint-imports"; \
	$(BIN)/python .ci/pins.py || failed="$$failed pins"; \
	if [ -n "$$failed" ]; then echo "check failed:$$failed" >&2; exit 1; fi

docs: $(VENV)/.installed-dev  ## build the site of docs/ into build/site; fails where a link leads nowhere
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict && echo "open build/site/index.html"

pages: $(VENV)/.installed-dev  ## write the generated pages of docs/reference again: commands, settings, columns, methods, tasks
	@for page in reference methods tasks; do $(BIN)/python scripts/document_$$page.py; done

gate: $(VENV)/.installed-dev  ## make a few cells of 200 prompts of results/reference again and compare (two minutes)
	@$(BIN)/python scripts/reference.py gate

gate-smollm2: $(VENV)/.installed-dev  ## the same for results/smollm2 (minutes; after kvbench data pull smollm2)
	@$(BIN)/python scripts/reference.py gate --rows smollm2

reference: $(VENV)/.installed  ## make results/reference again, its tables and figures too (2.2 hours on two cores)
	@$(BIN)/python scripts/reference.py run
	@$(BIN)/python scripts/reference.py pack
	@$(BIN)/python scripts/reference.py pages
	@$(BIN)/python scripts/reference.py pictures

board: $(INSTALLED)  ## rank the methods of the committed rows at equal bytes: build/board/index.html (half a minute)
	@$(BIN)/kvbench board $(BOARD) --out build/board

pictures: $(VENV)/.installed  ## draw the figures of README and docs again: from the committed rows, and of single prompts (a minute)
	@$(BIN)/python scripts/reference.py pictures
	@$(BIN)/python scripts/draw_concepts.py
	@$(BIN)/python scripts/draw_rooms.py
	@$(BIN)/python scripts/examples/plot_kept.py docs/images/tutorial-kept.png
	@$(BIN)/python scripts/draw_page.py

reference-full: $(VENV)/.installed  ## all tasks that the embedded model reads, at 4K, and more books (hours; KVBENCH_DATA)
	@$(BIN)/python scripts/reference.py run --part full --part full_books

smollm2: $(VENV)/.installed  ## go on with the rows of SmolLM2 from the committed ones, pack them, make pages (a day on two cores; KVBENCH_DATA)
	@[ -d results/runs/smollm2 ] || $(BIN)/python scripts/reference.py unpack --rows smollm2
	@$(BIN)/python scripts/reference.py run --rows smollm2 --stale keep
	@$(BIN)/python scripts/reference.py pack --rows smollm2
	@$(BIN)/python scripts/reference.py pages
	@$(BIN)/python scripts/reference.py pictures

confirm: $(VENV)/.installed  ## make the rows that results/confirm/claims.yaml waits for, and their page (hours; KVBENCH_DATA; FOR=400 ends after so many seconds)
	@[ -d results/runs/confirm ] || [ ! -f results/confirm/rows.parquet ] || $(BIN)/python scripts/reference.py unpack --rows confirm
	@$(BIN)/python scripts/reference.py run --rows confirm --stale keep $(if $(FOR),--seconds $(FOR))
	@$(BIN)/python scripts/reference.py pack --rows confirm
	@$(BIN)/python scripts/reference.py pages
	@$(BIN)/kvbench claims check results/confirm/claims.yaml --results results/runs/confirm

bench: $(VENV)/.installed-dev  ## time single parts: benchmarks/*.py
	@for script in $(SCRIPTS); do echo "== $$script"; $(BIN)/python "$$script"; done
	@$(if $(SCRIPTS),,echo "no benchmarks: benchmarks/ holds no script")

compile-kernels: $(VENV)/.installed-dev  ## compile every Triton kernel for A100 and H100, no GPU needed (half an hour of processor time)
	@$(BIN)/python -W ignore scripts/compile_kernels.py

gpu-check:  ## check and time every kernel on this GPU: needs torch, triton, transformers, numpy, no installation
	@$(or $(PYTHON),python3) -m benchmarks.gpu_check $(if $(OUT),--out '$(OUT)')

gpu-first-hour:  ## all that a first hour on a GPU measures, in parts of nine minutes: OUT=folder PARTS="kernels sweep" MINUTES=9 (of all parts)
	@$(or $(PYTHON),python3) -m benchmarks.first_hour $(PARTS) $(if $(OUT),--out '$(OUT)') $(if $(MINUTES),--minutes $(MINUTES))

gpu-bundle: $(VENV)/.installed-dev  ## wheels and SmolLM2 for a GPU machine without network: build/wheels (PART=60: also in files of 60 MiB; DATA=, NLTK=)
	@$(BIN)/python scripts/gpu_bundle.py $(if $(PART),--part $(PART)) $(if $(DATA),--data '$(DATA)') $(if $(NLTK),--nltk '$(NLTK)')

build: $(VENV)/.installed-dev  ## make the wheel and the source archive: dist/
	@rm -rf dist
	@$(BIN)/python -m build --no-isolation --outdir dist > build.log 2>&1 || { cat build.log >&2; rm -f build.log; exit 1; }
	@rm -f build.log; ls -l dist | awk 'NR > 1 {printf "dist/%s: %.1f MB\n", $$9, $$5 / 1e6}'

release: build  ## install the wheel and the source archive of dist/, each into a fresh environment, and run a cell there
	@tag=$$(git describe --tags --exact-match 2> /dev/null || true); version=v$$($(BIN)/kvbench --version); \
		if [ -n "$$tag" ] && [ "$$tag" != "$$version" ]; then echo "the tag is $$tag, the version $$version" >&2; exit 1; fi
	@for file in dist/*; do \
		rm -rf build/release && $(BIN)/python -m venv --without-pip build/release; \
		new=$$PWD/build/release/bin; sites='import sys; print(*(path for path in sys.path if path.endswith("site-packages")), sep="\n")'; \
		$(BIN)/python -c "$$sites" > "$$($$new/python -c "$$sites")/dependencies.pth"; \
		$(BIN)/python -m pip --python $$new/python install -q --no-index --no-deps --no-build-isolation --ignore-installed $$file; \
		(cd build/release && bin/kvbench run policy=snapkv budget=0.2 task=ruler/fwe task.samples=1 results.dir=rows > run.log 2>&1) \
			|| { cat build/release/run.log >&2; exit 1; }; \
		echo "$$file: kvbench $$($$new/kvbench --version) installed, one cell run"; \
	done

clean:  ## remove .venv, caches, builds and the demo's results; your own results stay
	@rm -rf $(VENV) build dist results/demo .pytest_cache .hypothesis .ruff_cache .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

hashed:  ## make .venv from files whose SHA-256 .ci/hashes.txt has, but for torch and triton, as CI does
	@$(call venv,$(VENV))
	@$(BIN)/python -m pip install -q --no-input --no-compile --no-deps torch triton -c constraints.txt & torch=$$!; \
	$(BIN)/python -m pip install -q --no-input --no-compile --require-hashes --no-deps -r .ci/hashes.txt; wait $$torch
	@$(BIN)/python -m pip install -q --no-input torch triton -c constraints.txt
	@$(BIN)/python -m pip install -q --no-input --no-deps --no-build-isolation -e .
	@touch $(VENV)/.installed $(VENV)/.installed-dev

constraints:  ## pin the newest versions that pyproject.toml admits (torch stays): rewrite constraints.txt and .ci/hashes.txt
	@rm -rf build/pins && $(call venv,build/pins)
	@grep '^torch==' constraints.txt > build/torch.txt
	@build/pins/bin/python -m pip install -q -e '.[accelerate,benchmarks,dev,docs,energy,hub,kernels,kvpress,slurm,wandb]' -c build/torch.txt
	@build/pins/bin/python -m pip install -q uv
	@build/pins/bin/python .ci/pins.py --write

# The first interpreter that is 3.11 to 3.13 and can make an environment; PYTHON=... is the only one tried.
define venv
for python in $(or $(PYTHON),python3.11 python3.12 python3.13 python3); do \
	if "$$python" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2> /dev/null; \
	then exec "$$python" -m venv --clear $(1); fi; \
done; \
echo "no Python 3.11, 3.12 or 3.13 with venv among: $(or $(PYTHON),python3.11 python3.12 python3.13 python3)." \
	"Install one, or name it: make PYTHON=/path/to/python3.11" >&2; exit 2
endef

# $(call install,WHAT): pip's own words go to a log, which is shown where it fails.
define install
if [ ! -x $(BIN)/pip ] || [ -e $(VENV)/.unfinished ]; then ( $(call venv,$(VENV)) ); fi; \
touch $(VENV)/.unfinished; started=$$SECONDS; \
echo "installing $(1) into $(VENV): a few minutes the first time (torch is large); log: $(VENV)/install.log"; \
$(BIN)/python -m pip install --disable-pip-version-check --no-input -e '$(1)' -c constraints.txt > $(VENV)/install.log 2>&1 \
	|| { tail -n 20 $(VENV)/install.log >&2; echo "installation failed; all of it: $(VENV)/install.log" >&2; exit 1; }; \
rm $(VENV)/.unfinished; echo "installed in $$((SECONDS - started)) s"
endef

WANTED := pyproject.toml constraints.txt hatch_build.py

$(VENV)/.installed: $(WANTED)
	@$(call install,.)
	@touch $@

$(VENV)/.installed-dev: $(WANTED)
	@$(call install,.[$(EXTRAS)])
	@touch $(VENV)/.installed $@
