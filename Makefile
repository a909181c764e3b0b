# Everything runs from here with Python and make; `make` alone lists what there is.
# The first call of a target makes .venv and installs what it needs, later calls start at once.

PYTHON ?= python3
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin

# python3 may be older or newer than convlab supports: unless told which, look for others by name.
PYTHONS = $(PYTHON) $(if $(filter file,$(origin PYTHON)),python3.12 python3.11 python3.13 python3.14)

.DEFAULT_GOAL := help
.NOTPARALLEL: # one pip at a time in .venv
.PHONY: help ladder bench a-gpu report test notebooks gate sanitize results site lessons lint types format check clean FORCE

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo 'ARGS="..."    is handed on:         make ladder ARGS="--image"'
	@echo 'PYTHON=...    makes .venv with it:  make test PYTHON=python3.12'

ladder: $(VENV)/.ladder ## every stage of the ladder on one problem: checked, and timed or counted
	@$(BIN)/convlab ladder $(ARGS)

# All of it, or with ARGS just the one command. Commands in the background ignore Ctrl-C: the trap ends
# the one that runs, which keeps its rows, and the same target goes on there. A second Ctrl-C kills it;
# a second TERM does not, as make hands on its own to a shell that has had one.
bench: $(if $(ARGS),,a-gpu) $(VENV)/.bench ## all that is measured, on a GPU; goes on where it was interrupted
	@$(if $(ARGS),exec $(BIN)/convlab bench $(ARGS);) \
	first=0; trap 'kill $${stopped:+-9} $$pid; stopped=1' INT; trap 'kill $$pid; stopped=1' TERM; \
	for words in bench 'bench --cases ablation' 'bench --cases sweeps' 'bench --cases unfold_table' \
			'bench --cases grouped' 'bench --cases gradients' \
			'bench --cases unseen' 'bench --cases precisions' \
			'report --html report.html --markdown report.md'; do \
		echo "== convlab $$words"; \
		$(BIN)/convlab $$words & pid=$$!; \
		[ -z "$$stopped" ] || kill $$pid; \
		while wait $$pid; code=$$?; kill -0 $$pid 2>/dev/null; do :; done; \
		echo "== convlab $$words: exit code $$code"; \
		[ -z "$$stopped" ] || exit 130; \
		[ $$code -ne 2 ] || exit 2; \
		[ $$first -ne 0 ] || first=$$code; \
	done; exit $$first

# Before gigabytes of baselines are installed.
a-gpu: $(VENV)/.cuda
	@[ -s $(VENV)/.cuda ] || { \
		echo "convlab: make bench needs a GPU, because a simulator's times mean nothing: there is no NVIDIA driver of CUDA 12 or later here" >&2; exit 2; }

report: $(VENV)/.ladder ## report.html and report.md, from bench.json
	@$(BIN)/convlab report --html report.html --markdown report.md $(ARGS)

# Each process keeps a CUDA context, hundreds of MiB on a GPU: a few are enough. With worksteal
# neighbours stay in one process, which makes what they share, such as a fixture of a module, once.
test: $(VENV)/.test ## the tests, on whichever engine this machine has; SLOW=1: the slow ones as well
	@$(BIN)/python -m pytest -n $$([ -s $(VENV)/.cuda ] && echo 4 || echo auto) --dist worksteal -m "$(if $(SLOW),,not slow and )not gate and not site $(if $(NOTEBOOKS),,and not notebooks )and not answers" $(ARGS)

notebooks: $(VENV)/.test ## run every notebook of the lessons, check every answer to their exercises; ten minutes
	@$(BIN)/python -m pytest -n auto --dist worksteal -m "notebooks or answers" $(ARGS)

gate: $(VENV)/.test ## compile every stage for a GPU, which need not be here, and read the machine code
	@$(BIN)/python -m pytest -n auto --dist worksteal -m gate $$(grep -rlw --include='test_*.py' pytest.mark.gate tests) $(ARGS)

sanitize: $(VENV)/.ladder ## every stage on a GPU under compute-sanitizer's four tools
	@$(BIN)/python tests/tools/sanitizers.py $(ARGS)

results: $(VENV)/.ladder ## the picture and tables of the documentation, from docs/results/*.json
	@PYTHONPATH=tests/tools $(BIN)/python docs/site/results_pages.py $(ARGS)

site: $(VENV)/.site ## the documentation as a site in build/site, to be read with no network
	@$(BIN)/python docs/site/build_site.py

lessons: $(VENV)/.lessons ## the notebooks, copied to my-lessons (ARGS=FOLDER) and opened in JupyterLab
	@$(BIN)/convlab lessons $(ARGS)

lint: $(VENV)/.style ## style and formatting, by ruff
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

types: $(VENV)/.style ## types, by mypy
	@$(BIN)/mypy

format: $(VENV)/.style ## rewrite the files the way lint wants them
	@$(BIN)/ruff check --fix-only
	@$(BIN)/ruff format

check: ## all that a change has to pass
	@.ci/run

clean: ## remove .venv, builds and caches
	@rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# A file for each set of extras says that convlab stands in .venv, editable, with them. By uv where
# somebody has put it there, as .ci/run does: seconds instead of minutes.
$(VENV)/.ladder: EXTRAS = plots$$(sed 's/^/,/' $(VENV)/.cuda)
$(VENV)/.bench: EXTRAS = plots,$$(sed 's/gpu/baselines/' $(VENV)/.cuda | grep . || echo baselines)
$(VENV)/.lessons: EXTRAS = lessons$$(sed 's/^/,/' $(VENV)/.cuda)
# Not the extra `test`: it brings the compilers of CUDA 13, which cannot stand beside those of 12.
$(VENV)/.test: EXTRAS = test-tools,$$(grep . $(VENV)/.cuda || echo gpu-cu13)
$(VENV)/.style: EXTRAS = style
$(VENV)/.site: EXTRAS = site

$(VENV)/.ladder $(VENV)/.bench $(VENV)/.lessons $(VENV)/.test: $(VENV)/.cuda
$(VENV)/.ladder $(VENV)/.bench $(VENV)/.lessons $(VENV)/.test $(VENV)/.style $(VENV)/.site: pyproject.toml | $(BIN)/python
	@extras="$(EXTRAS)"; \
	echo "installing convlab[$$extras] in $(VENV): minutes the first time"; \
	{ [ -x $(BIN)/uv ] && $(BIN)/uv pip install -q --python $(BIN)/python --editable ".[$$extras]"; } \
		|| $(BIN)/python -m pip install -qq --disable-pip-version-check --editable ".[$$extras]"
	@touch $@

# Which CUDA extra fits the driver: one line, or none without a driver. Looked up at every call but
# written only when it changes, so that a new driver, and nothing else, leads to a new install: into
# an empty .venv, because the libraries of CUDA 12 and of CUDA 13 cannot stand side by side.
# Drivers print "CUDA Version: 12.4" or, from 610 on, "CUDA UMD Version: 13.3".
$(VENV)/.cuda: FORCE | $(BIN)/python
	@extra=; \
	if nvidia-smi >/dev/null 2>&1 || [ -e /proc/driver/nvidia/version ]; then \
		major=$$(nvidia-smi 2>/dev/null | sed -n 's/.*CUDA [UMD ]*Version: *\([0-9]*\).*/\1/p' | head -n 1); \
		case "$$major" in \
			12) extra=gpu-cu12 ;; \
			1[3-9]|[2-9][0-9]) extra=gpu-cu13 ;; \
			"") extra=gpu-cu13; echo "an NVIDIA driver of unknown CUDA version: taking CUDA 13" ;; \
			*) echo "the NVIDIA driver's CUDA $$major is too old: update it to use the GPU" ;; \
		esac; \
	fi; \
	if [ -e $@ ]; then \
		[ "$$extra" != "$$(cat $@)" ] || exit 0; \
		echo "the NVIDIA driver has changed: making $(VENV) anew"; \
		$(BIN)/python -m venv --clear $(VENV) || exit; \
	fi; \
	printf "$${extra:+$$extra\n}" > $@

$(BIN)/python:
	@fail() { echo "$$1" >&2; exit 1; }; \
	[ "$$(uname -s)" != Darwin ] || fail "numba-cuda is built for Linux and Windows, not for macOS: use a Linux container"; \
	for python in $(PYTHONS) ""; do \
		[ -n "$$python" ] || fail "convlab needs Python 3.11 to 3.14 (tried $(strip $(PYTHONS))): install one, or name it with PYTHON="; \
		"$$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null && break; \
	done; \
	"$$python" -c 'import ensurepip, venv' 2>/dev/null \
		|| fail "$$python has no venv module: install it (Debian and Ubuntu: apt install python3-venv)"; \
	echo "making $(VENV) with $$("$$python" --version)"; \
	"$$python" -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
