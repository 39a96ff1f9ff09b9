# Every target is one command of `bench`, which works without make, too: `make help`, `bench help`.
#
#   make bench MODE=ddp GPUS=4        one run
#   make verify                       do all modes compute the same update?
#   make bench VENV=none              on Colab, Kaggle or a cluster: use this Python, replace nothing in it

VENV   ?= .venv#   the environment to make and use; none: use PYTHON as it is
PYTHON ?= python3# the Python to set up with (3.11 to 3.13)
TORCH   = auto#    PyTorch's build to set up with: cpu, cuda, cu126, cu128, cu130; auto: by the NVIDIA driver
ARGS    =#         passed on as it stands: make test ARGS="-k ddp"

# A variable given on make's command line becomes the flag of the same name (GPUS=4: --gpus="4"); of one that happens to
# be in the environment the command says that it is not used. The value reaches the shell as "$GPUS", unexpanded by make
# as well, so it may hold anything. A misspelt one is refused by the command.
on_command_line = $(filter command,$(firstword $(origin $1)))
GIVEN := $(filter-out VENV PYTHON TORCH ARGS SHELL MAKE MAKEFLAGS MFLAGS MAKEOVERRIDES -%, \
  $(foreach v,$(.VARIABLES),$(if $(call on_command_line,$v),$v)))
$(foreach v,$(GIVEN),$(eval override $v := $$(value $v))$(eval export $v))
FLAGS := $(join $(addprefix --,$(if $(GIVEN),$(shell echo $(GIVEN) | tr A-Z_ a-z-))),$(patsubst %,="$$%",$(GIVEN)))

ifeq ($(VENV),none)
  PY    := $(PYTHON)
  READY := $(shell $(PYTHON) -m bench.install.packages --stamp-name)
  DEV    = @$(PYTHON) -m bench.install.packages --venv none --extra dev
  COURSE = $(READY)-course
  export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))
else
  PY    := $(VENV)/bin/python
  READY := $(VENV)/.ready
  COURSE = $(VENV)/.course
endif

# The targets are the table of commands (bench/cli): `compare`, its part `compare/scaling`, and `notebooks+course`, which
# needs the packages of the course. `make compare scaling` is `bench compare scaling`: the second goal is a word of the
# first. Their variables are in lower case, as no option is: PART=A1 is one.
LISTER  := $(firstword $(wildcard $(PY)) $(PYTHON))
TARGETS := $(shell $(LISTER) -m bench help --targets 2>/dev/null)
OWN     := setup test lint clean help
ifeq ($(TARGETS),)
ifneq ($(filter-out setup test lint clean,$(or $(MAKECMDGOALS),help)),)
  # The wrong Python, or a file that cannot be imported: its traceback.
  $(shell { $(PYTHON) -m bench.install.packages --check --venv "$(VENV)" && $(LISTER) -m bench help --targets; } >&2)
  $(error the commands of bench cannot be listed)
endif
endif
goal    := $(firstword $(MAKECMDGOALS))
part    := $(filter $(goal)/$(word 2,$(MAKECMDGOALS)),$(TARGETS:%+course=%))
word_of := $(patsubst $(goal)/%,%,$(part))
NEITHER := $(filter-out $(OWN) $(word_of) $(TARGETS:%+course=%),$(MAKECMDGOALS))
ifneq ($(if $(TARGETS),$(filter-out .%,$(NEITHER))),)
  $(error no target $(firstword $(NEITHER)): `make help` lists them)
endif
LEARN   := $(patsubst %+course,%,$(filter %+course,$(TARGETS)))
DIRECT  := $(filter-out $(OWN) %+course,$(TARGETS))

.DEFAULT_GOAL := help
.PHONY: $(DIRECT) $(LEARN) $(OWN) $(word_of)

ifneq ($(part),)
$(goal): $(if $(filter $(part),$(LEARN)),$(COURSE),$(READY))
	@exec env BENCH_INSTALLS=1 $(PY) -m bench $(goal) $(word_of) $(ARGS) $(FLAGS)
$(word_of): ;@:
else
$(DIRECT): $(READY)
$(LEARN): $(COURSE)
$(DIRECT) $(LEARN):
	@exec env BENCH_INSTALLS=1 $(PY) -m bench $@ $(ARGS) $(FLAGS)
endif

$(READY): pyproject.toml bench/install/requirements.lock
	@$(PYTHON) -m bench.install.packages --venv "$(VENV)" --torch "$(TORCH)" --stamp "$@"

# An environment that is there may have the other build.
ifneq ($(call on_command_line,TORCH),)
.PHONY: ask
$(READY): ask
endif

$(COURSE): $(READY) bench/install/requirements-notebooks.lock
	@$(PYTHON) -m bench.install.packages --venv "$(VENV)" --notebooks --stamp "$@"

# The targets that are no command take no variables, but QUICK=1 of test.
ifneq ($(filter $(OWN),$(MAKECMDGOALS)),)
ifneq ($(filter-out $(if $(filter test,$(MAKECMDGOALS)),QUICK),$(GIVEN)),)
  $(error unknown variable $(filter-out QUICK,$(GIVEN)) of make $(MAKECMDGOALS))
endif
endif

setup: $(READY)

test: $(COURSE)
	$(DEV)
	@$(PY) -m pytest -n auto --dist loadfile --no-loadscope-reorder \
	  $(if $(filter-out 0,$(QUICK)),-m quick) $(ARGS)

lint: $(READY)
	$(DEV)
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -c "from importlinter.cli import lint_imports_command as lint; lint()"
	@$(PY) -m tests.lint
	@$(PY) -m tests.prose
	@$(PY) -m codespell_lib

clean:
	@rm -rf build dist *.egg-info .pytest_cache .ruff_cache .import_linter_cache
	@find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +

help:
	@$(LISTER) -m bench help --make
