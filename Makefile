# `make run` sees this machine, measures it, plans an all-reduce and runs it. `make test` tests all.
# Both install what the distribution lacks, or say what to install.

.PHONY: run build test lint loom fuzz setup clean

run: build
	target/release/topo-bench

build: setup
	cargo build --release --workspace

test: setup
	cargo test --workspace

lint: setup
	cargo fmt --all --check
	cargo clippy --workspace --all-targets
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

# Every order of events of the wake-up protocol, by a model checker.
loom: setup
	RUSTFLAGS="--cfg loom" cargo test --lib --target-dir target/loom bell

# Each reader on noise, SECONDS each; needs `cargo install cargo-fuzz`.
SECONDS ?= 60
fuzz: setup
	for target in topology plan plan_file; do \
	  RUSTC_BOOTSTRAP=1 cargo fuzz run $$target fuzz/corpus/$$target -- -max_total_time=$(SECONDS) || exit 1; \
	done

setup:
	@tools/setup

clean:
	cargo clean
