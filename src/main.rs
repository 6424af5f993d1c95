//! The `tidegate` program: arguments in, exit code out.

use std::process::ExitCode;

/// Large buffers come and go; the allocator keeps what they leave behind in bounds.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    tidegate::cli::main()
}
