# Two commands: `make demo` shows what torchalgo does on this machine, `make test` checks everything.
PYTHON ?= python3
VENV := .venv
DOCS_VENV := build/docs-venv
BUILD := build/release
FULL_RUN := build/full_run.json
PY := $(VENV)/bin/python
BIN := $(CURDIR)/$(VENV)/bin
export PATH := $(BIN):$(PATH)

.PHONY: help deps venv build demo test test-all test-cpp test-python example lint tidy format docs full-deps bench-deps clean

help:
	@echo "make demo   set up, build, and optimize a ResNet-50 here (minutes; no data is downloaded)"
	@echo "make test   set up, build, lint, test; leaves out what takes long"
	@echo "make test-all    the tests that take long too; on a tree without changes it records the run"
	@echo "make build  set up and build: afterwards $(PY) can import torchalgo"
	@echo "make docs   build the site in build/site; it needs no torch and no build"
	@echo "make lint, make format, make bench-deps, make clean"

deps:
	@bash scripts/deps.sh $(PYTHON)

$(VENV)/.installed: requirements-dev.txt | deps
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PY) scripts/with_progress.py "installing torch and the tools into $(VENV) (3 GB the first time)" \
	  $(PY) -m pip install --disable-pip-version-check -r requirements-dev.txt
	@touch $@

venv: $(VENV)/.installed

build: venv
	@TORCHALGO_BUILD_DIR=$(BUILD) CMAKE_ARGS="$(CMAKE_ARGS)" $(PY) scripts/with_progress.py "building" \
	  $(PY) -m pip install -v --disable-pip-version-check --no-build-isolation --no-deps -e .
	@$(PY) -c "import torchalgo; print('torchalgo', torchalgo.__version__, 'is ready in $(VENV)')"

demo: build
	@$(BIN)/torchalgo demo

test:
	@began=$$(date +%s); $(MAKE) --no-print-directory lint test-cpp example test-python && \
	  echo "torchalgo: make test took $$(( $$(date +%s) - began )) s"

test-all: full-deps
	@began=$$(date +%s); $(MAKE) --no-print-directory docs lint test-cpp example test-python FULL=$(FULL_RUN) && \
	  $(PY) benchmarks/record_tests.py add $(FULL_RUN) --seconds $$(( $$(date +%s) - began )) && \
	  echo "torchalgo: make test-all took $$(( $$(date +%s) - began )) s"

test-cpp: CMAKE_ARGS := -DTORCHALGO_TESTS=ON
test-cpp: build
	@ctest --test-dir $(BUILD) --output-on-failure -j 2 --no-tests=error

# test-all sets FULL, the file for the record. Without it, tests that are marked slow are left out.
test-python: build
	@$(PY) -m pytest -q --durations=10 -n 2 --dist worksteal tests/python --known-skips $(if $(FULL),--record $(FULL),-m "not slow")

example: build
	@bash examples/cpp_deploy/run.sh $(PY)
	@bash examples/cpp_pt2/run.sh $(PY)

lint: venv
	@$(PY) scripts/check_includes.py
	@$(PY) scripts/check_english.py
	@$(PY) scripts/check_errors.py
	@git ls-files --cached --others --exclude-standard '*.cpp' '*.h' '*.cu' | xargs clang-format --dry-run -Werror
	@ruff format --check --quiet . && ruff check --quiet .
	@mypy

# The folders that need no torch: its headers take clang-tidy several seconds for each source.
tidy: venv
	@clang-tidy --version >/dev/null
	@cmake -S . -B build/tidy -G Ninja -DPython_EXECUTABLE=$(BIN)/python -DTORCHALGO_PCH=OFF >build/tidy.log 2>&1
	@git ls-files $(patsubst %,'csrc/%/*.cpp',base ir pbqp planner) ':(glob)csrc/cpu_algo/*.cpp' | \
	  xargs -n 4 -P 2 clang-tidy -p build/tidy --quiet 2>>build/tidy.log

format: venv
	@git ls-files --cached --others --exclude-standard '*.cpp' '*.h' '*.cu' | xargs clang-format -i
	@ruff format --quiet . && ruff check --quiet --fix .

$(DOCS_VENV)/.installed: requirements-docs.txt
	@$(PYTHON) -m venv $(DOCS_VENV)
	@$(DOCS_VENV)/bin/python scripts/with_progress.py "installing MkDocs into $(DOCS_VENV)" \
	  $(DOCS_VENV)/bin/python -m pip install --disable-pip-version-check -r requirements-docs.txt
	@touch $@

docs: $(DOCS_VENV)/.installed
	@NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/python -m mkdocs build --quiet --strict
	@$(DOCS_VENV)/bin/python scripts/site/check_site.py build/site
	@$(DOCS_VENV)/bin/codespell README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md mkdocs.yml docs python/torchalgo python/torchalgo_cli
	@echo "open build/site/index.html"

full-deps: venv
	@$(PY) scripts/with_progress.py "installing what all tests need" \
	  $(PY) -m pip install --disable-pip-version-check -r requirements-full.txt
	@bash scripts/emulate_arm.sh install

bench-deps: venv
	@$(PY) scripts/with_progress.py "installing what benchmarks compare with" \
	  $(PY) -m pip install --disable-pip-version-check -r requirements-bench.txt
	@$(PY) scripts/with_progress.py "installing converters of other engines" \
	  $(PY) -m pip install --disable-pip-version-check --no-deps -r requirements-converters.txt

# In an old clone, it also removes folders of packages with another name now, and the distribution's first name.
clean:
	rm -rf build dist python/*.egg-info python/torchalgo/*.so python/torchalgo/_build_info.py
	rm -rf python/torchalgo/include python/torchalgo/share/cmake python/torchalgo/share/sources
	rm -rf $(VENV)/lib/python*/site-packages/torchalgo-[0-9]* $(VENV)/lib/python*/site-packages/__editable__.torchalgo-[0-9]*
	find python -name __pycache__ -prune -exec rm -rf {} +
	find python -mindepth 1 -type d -empty -delete
