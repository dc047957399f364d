#!/bin/sh
# Runs one fuzz target under libFuzzer for some seconds: scripts/fuzz.sh TARGET SECONDS [libFuzzer's options]
set -eu
target=$1 seconds=$2
shift 2
cd "$(dirname "$0")/../fuzz/libfuzzer"
host=x86_64-unknown-linux-gnu
# What cargo-fuzz sets: coverage for libFuzzer, and assertions.
RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
-Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Cdebug-assertions -Ccodegen-units=1 -Ctarget-feature=-crt-static" \
    cargo build --quiet --release --target "$host" --bin "$target"
corpus="target/corpus/$target"
mkdir -p "$corpus"
# As the runtime of a Rust program does before main, which libFuzzer's main is not: the broker writes to pipes nobody reads any more.
trap '' PIPE
exec "${CARGO_TARGET_DIR:-target}/$host/release/$target" -max_total_time="$seconds" -print_final_stats=1 "$@" "$corpus"
