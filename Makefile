# Everything a contributor runs, and all that it needs: Python 3.11 or newer, and make.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# The first interpreter that really runs: a version manager's shim may exist and fail.
FOUND = $(shell for name in python3.13 python3.12 python3.11 python3 python; do \
	"$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11)); ' >/dev/null 2>&1 && \
	"$$name" -c 'import sys; print(sys.executable)' && break; done)

# A PYTHON that is given has environments of its own, as .venv-3.12 or .venv-3.13t, unless it has the version of .venv.
VERSION_OF = $(shell "$(1)" -c 'import sys; sys.version_info < (3, 11) or print(*sys.version_info[:2], sep=".", \
	end=sys.abiflags)' 2>/dev/null)
ifneq ($(origin PYTHON),undefined)
GIVEN := $(call VERSION_OF,$(PYTHON))
ifeq ($(GIVEN),)
$(error PYTHON must be a Python 3.11 or newer that runs here, got '$(PYTHON)': name another, or leave it out)
endif
# Where there is no .venv yet, it will have the version of what was found.
OF := $(addprefix -,$(if $(filter-out $(GIVEN),$(or $(call VERSION_OF,.venv/bin/python),$(call VERSION_OF,$(FOUND)))),$(GIVEN)))
endif
PYTHON ?= $(FOUND)
VENV = .venv$(OF)
DEMO = .venv-demo$(OF)
AUDIT = .venv-audit$(OF)
NEXT = .venv-next$(OF)

# uv from the PATH when it works there, else a pinned one of our own.
UV ?= $(shell uv --version >/dev/null 2>&1 && command -v uv || echo .tools/bin/uv)

NEED_PYTHON = [ -n "$(PYTHON)" ] || { \
	echo "make: no Python 3.11 or newer runs here: install one (Debian: apt install python3 python3-venv)," \
		"or name it: make PYTHON=/path/to/python3" >&2; exit 1; }

# uv trusts the certificates of the machine, as pip does, and leaves the choice of the interpreter to us.
export UV_SYSTEM_CERTS ?= 1
export UV_PYTHON_DOWNLOADS ?= never
export PYRIGHT_PYTHON_IGNORE_WARNINGS ?= 1

ARGS ?=
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
SOURCES = $(wildcard queuert pytest_queuert.py pyspark_queuert.py tests examples scripts benchmarks alembic)
DEV = $(VENV)/bin/python
LOCK = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-config \
	--no-emit-package queuert

.PHONY: help demo dashboard-demo test test-all test-steady test-pythons check bench docs lock format clean environment
.PHONY: check-lint check-format check-mypy check-pyright check-imports check-twins check-sizes check-files check-docs
.PHONY: check-security check-words check-vendor check-next audit sbom moved

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The demos of two applications need neither a server nor Spark, but what the tests have.
PROGRAM_federation = examples.two_servers
PROGRAM_uploads = examples.upload_service
PROGRAM = $(PROGRAM_$(firstword $(ARGS)))

demo: $(if $(PROGRAM),$(VENV),$(DEMO))/.installed ## Run the demo on an embedded Postgres, or ARGS=federation or uploads
ifneq ($(PROGRAM),)
	@$(DEV) -m $(PROGRAM) $(wordlist 2,9,$(ARGS))
else
	@mkdir -p .cache/demo
	@$(DEMO)/bin/python -m queuert.cli dev demo --report .cache/demo/report.md $(ARGS)
endif

# Bytecode is kept, wherever the environment says not to: hundreds of tests start processes, and each would compile all that
# it imports again.
TESTING = PYTHONDONTWRITEBYTECODE= QUEUERT_REQUIRE_SERVERS=1 $(DEV)

# Both sizes run in parts, which scripts/run_tests.py names; the tests of some paths, all of them, in one run.
test: $(VENV)/.installed ## Run the quick size of the tests on real servers (ARGS="-k name"), or all of a path (ARGS="tests/worker")
ifeq ($(filter tests/%,$(ARGS)),)
	@$(TESTING) scripts/run_tests.py $(ARGS)
else
	@$(TESTING) -m pytest $(ARGS)
endif

test-all: $(VENV)/.installed ## Run all tests on real servers, in random order
	@$(TESTING) scripts/run_tests.py --all $(ARGS)

test-steady: $(VENV)/.installed ## Run the quick size five times beside busy processes, and count what fails
	@$(TESTING) scripts/run_tests.py --steady $(ARGS)

test-pythons: ## Run the quick size on each version of Python that is promised and found here
	@$(NEED_PYTHON)
	@"$(PYTHON)" scripts/run_pythons.py $(ARGS)

check: $(VENV)/.installed ## Run the linters, type checkers and other static checks
	@$(MAKE) --no-print-directory --keep-going -j2 $(if $(findstring output-sync,$(.FEATURES)),--output-sync=target) \
		check-mypy check-pyright check-lint check-format check-imports check-twins check-sizes check-files check-docs \
		check-security check-words check-vendor

bench: $(VENV)/.installed ## Measure against peers and the raw ceiling (ARGS="...")
	@$(DEV) -m benchmarks $(ARGS)

dashboard-demo: $(VENV)/.installed ## Write the pages of a dashboard as files to .cache/dashboard-demo
	@QUEUERT_DEMO=.cache/dashboard-demo $(TESTING) -m pytest -q --size=all -n 0 tests/browser/test_demo.py
	@echo "Open .cache/dashboard-demo/index.html"

docs: $(VENV)/.installed check-docs ## Check that the links of the documents resolve

# Newer than pyproject.toml allows, too: so an upper bound is raised on what was seen to work.
check-next: $(UV) ## Run the conformance suite on the newest versions of all dependencies, in an environment of its own
	@$(NEED_PYTHON)
	@$(UV) venv --quiet --clear --no-project --python "$(PYTHON)" $(NEXT)
	@$(UV) pip install --quiet --upgrade --python $(NEXT)/bin/python --overrides requirements/next.in \
		--build-constraints requirements/build.txt -r requirements/dev.in
	@$(UV) pip list --quiet --python $(NEXT)/bin/python
	@QUEUERT_REQUIRE_SERVERS=1 $(NEXT)/bin/python -m pytest -n 2 --dist worksteal --both-modes tests/conformance $(ARGS)

audit: $(AUDIT)/.installed ## Ask a public service for known vulnerabilities of what is pinned
	@$(AUDIT)/bin/python scripts/audit.py

sbom: $(AUDIT)/.installed ## List what a worker consists of, as CycloneDX, in dist/
	@mkdir -p dist
	@$(AUDIT)/bin/cyclonedx-py requirements requirements/worker.txt --pyproject pyproject.toml --mc-type library \
		--short-PURLs --output-reproducible --output-file dist/queuert-$(VERSION).cdx.json
	@echo "wrote dist/queuert-$(VERSION).cdx.json"

lock: $(UV) ## Pin requirements/*.in anew, with hashes (ARGS="--upgrade")
	@for name in tools build demo worker audit dev; do \
		$(LOCK) $(ARGS) --custom-compile-command "make lock" -o requirements/$$name.txt requirements/$$name.in || exit 1; \
	done

format: $(VENV)/.installed ## Format the code, and write the generated modules anew
	@$(DEV) -m ruff check --quiet --fix-only $(SOURCES)
	@$(DEV) -m ruff format $(SOURCES)
	@$(DEV) scripts/unasync.py
	@$(DEV) -m scripts.metrics_page
	@$(DEV) -m scripts.documents_schema

environment: $(VENV)/.installed ## Create or refresh .venv, or with PYTHON=/path/to/python3.12 .venv-3.12, and nothing more
	@echo "ready: $(VENV)/bin/python"

clean: ## Remove the environments and caches
	rm -rf .tools .venv .venv-* .cache dist build

check-lint:
	@$(DEV) -m ruff check --quiet --cache-dir .cache/ruff $(SOURCES) && echo "ruff check: passed"
check-format:
	@$(DEV) -m ruff format --check --quiet --cache-dir .cache/ruff $(SOURCES) && echo "ruff format: passed"
check-mypy:
	@$(DEV) -m mypy $(SOURCES)
check-pyright:
	@$(DEV) -m pyright --pythonpath $(DEV)
check-imports:
	@$(VENV)/bin/lint-imports --no-logo --cache-dir .cache/import-linter
check-twins:
	@$(DEV) scripts/unasync.py --check
check-sizes:
	@$(DEV) scripts/check_sizes.py
check-files:
	@$(DEV) scripts/check_files.py
check-security:
	@$(DEV) scripts/check_security.py
check-words:
	@$(DEV) scripts/check_words.py
check-vendor:
	@$(DEV) scripts/check_vendor.py
check-docs: | $(VENV)/.installed
	@$(DEV) scripts/check_docs.py

.tools/bin/uv: requirements/tools.txt
	@$(NEED_PYTHON)
	@"$(PYTHON)" -m venv --clear .tools >/dev/null 2>&1 || { rm -rf .tools; \
		echo "make: '$(PYTHON) -m venv' does not work: install it (Debian: apt install python3-venv), or install uv" >&2; \
		exit 1; }
	@.tools/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/tools.txt
	@touch $@

# An environment is good for the directory it was made in: it holds absolute paths. A copy elsewhere makes its own.
MOVED = $(shell [ "$$(cat $(1)/.installed 2>/dev/null)" = "$(CURDIR)" ] || echo moved)
$(VENV)/.installed: $(call MOVED,$(VENV))
$(DEMO)/.installed: $(call MOVED,$(DEMO))
$(AUDIT)/.installed: $(call MOVED,$(AUDIT))

$(VENV)/.installed: requirements/dev.txt
$(DEMO)/.installed: requirements/demo.txt
$(AUDIT)/.installed: requirements/audit.txt | $(UV)
	@$(NEED_PYTHON)
	@echo "Installing into $(@D)"
	@$(UV) venv --quiet --clear --no-project --python "$(PYTHON)" $(@D)
	@$(UV) pip sync --quiet --python $(@D)/bin/python --require-hashes requirements/audit.txt
	@printf '%s' "$(CURDIR)" >$@
$(VENV)/.installed $(DEMO)/.installed: pyproject.toml requirements/build.txt | $(UV)
	@$(NEED_PYTHON)
	@echo "Installing into $(@D)"
	@[ "$$(cat $@ 2>/dev/null)" = "$(CURDIR)" ] || $(UV) venv --quiet --clear --no-project --python "$(PYTHON)" $(@D)
	@$(UV) pip sync --quiet --python $(@D)/bin/python --require-hashes \
		--build-constraints requirements/build.txt $(filter %/dev.txt %/demo.txt,$^)
	@$(UV) pip install --quiet --python $(@D)/bin/python --no-deps --build-constraints requirements/build.txt --editable .
	@printf '%s' "$(CURDIR)" >$@
