# Thin names for what cargo and tests/tools do. `make help` lists them.

RELEASE := target/release/halfhitch
PROMPT  := What is the capital of France?

.DEFAULT_GOAL := help
.PHONY: help doctor setup model run chat test lint fmt docs deny clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

doctor: ## check what this machine has, and say how to get what is missing
	@tests/tools/doctor.sh

setup: ## build the program, optimised
	@bash -c 'source tests/tools/common.sh; need_cargo; need_cc'
	cargo build --release --locked -p halfhitch

model: setup ## fetch and import the small real model into models/smollm2-135m (93 MB)
	@tests/tools/fetch-model.sh $(RELEASE)

run: model ## set everything up and print an answer (PROMPT="..." asks something else)
	@$(RELEASE) generate --model models/smollm2-135m --prompt "$$PROMPT"

chat: model ## set everything up and talk with the model
	@$(RELEASE) chat --model models/smollm2-135m

test: ## set everything up and run all tests
	@tests/tools/test.sh

lint: ## formatting, shell scripts, licences and sources, clippy, docs
	@tests/tools/lint.sh

fmt: ## format the code
	cargo fmt --all

docs: ## build the API documentation
	@tests/tools/lint.sh docs

deny: ## check licences, sources and banned crates
	@tests/tools/lint.sh deny

clean: ## remove what was built; models and downloads stay
	cargo clean

run: export PROMPT := $(PROMPT)
