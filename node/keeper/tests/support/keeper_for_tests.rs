fn main() -> std::process::ExitCode {
    keeper::main_from_spawn()
}
