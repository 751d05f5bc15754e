# Everything runs in .venv, which the first target makes. The stamp is renewed when the requirements change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install demo test test-ray test-lowest test-newest check format clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/python -m hashee.cli.demo

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Ray tests mostly wait, so they run beside the others, in a process of their own; their output is shown last.
test: check
	$(BIN)/pytest -m ray > .ray-tests.log 2>&1 & ray=$$!; \
	$(BIN)/pytest -n 2 --dist worksteal --durations 40 -m 'not ray'; failed=$$?; \
	wait $$ray || failed=1; cat .ray-tests.log; exit $$failed

test-ray: $(STAMP)
	$(BIN)/pytest -m ray

# Parity and Hugging Face tests in an environment of their own: the lowest versions that are declared, the newest there are.
test-lowest test-newest: test-%:
	$(PYTHON) -m venv --clear $(VENV)-$*
	$(VENV)-$*/bin/pip install --quiet --constraint constraints-$*.txt torch==2.13.0 --editable '.[all,demo]' pytest hypothesis
	$(VENV)-$*/bin/pytest tests/engine/test_parity.py tests/hf/test_huggingface.py tests/hf/test_common_*.py tests/test_readme.py

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(VENV)-lowest $(VENV)-newest build dist .ray-tests.log .pytest_cache .mypy_cache .ruff_cache .hypothesis
