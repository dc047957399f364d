//! Prints what this machine can do: `cargo run -p sandbox --example doctor`.

fn main() {
    for check in sandbox::doctor::checks() {
        println!("{:<22} {:?} {}", check.name, check.state, check.found);
    }
}
