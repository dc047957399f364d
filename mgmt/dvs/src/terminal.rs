//! The local terminal: raw while a program's terminal is shown on it, as it was before in every other case.
//!
//! The original settings lie in a process-wide place, so that whoever comes first restores them: the guard's drop on
//! return, error and unwinding, or the panic hook (also for panics of other threads). Signals that end the command are
//! taken by the pump, which returns; nothing can be done about SIGKILL.

use std::io::{self, Stdin};
use std::sync::Once;

use mgmt_api::TerminalSize;
use parking_lot::Mutex;
use rustix::termios::{self, OptionalActions, Termios};

/// What terminals had for forty years when nobody says anything else.
const DEFAULT_SIZE: TerminalSize = TerminalSize { rows: 24, columns: 80 };

static ORIGINAL: Mutex<Option<Termios>> = Mutex::new(None);
static HOOK: Once = Once::new();

/// While it lives the terminal on standard input is raw.
pub struct RawTerminal {
    _private: (),
}

pub fn is_terminal(stdin: &Stdin) -> bool {
    termios::isatty(stdin)
}

/// None when standard input is no terminal: nothing to change.
pub fn make_raw() -> io::Result<Option<RawTerminal>> {
    let stdin = io::stdin();
    if !is_terminal(&stdin) {
        return Ok(None);
    }
    let original = termios::tcgetattr(&stdin)?;
    let mut raw = original.clone();
    raw.make_raw();
    install_hook();
    *ORIGINAL.lock() = Some(original);
    let guard = RawTerminal { _private: () };
    termios::tcsetattr(&stdin, OptionalActions::Drain, &raw)?;
    Ok(Some(guard))
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        restore();
    }
}

/// Size of the terminal we are on.
pub fn size() -> TerminalSize {
    let known =
        [termios::tcgetwinsize(io::stdout()), termios::tcgetwinsize(io::stdin()), termios::tcgetwinsize(io::stderr())];
    let known = known.into_iter().flatten().find(|size| size.ws_row > 0 && size.ws_col > 0);
    known.map_or(DEFAULT_SIZE, |size| TerminalSize { rows: size.ws_row, columns: size.ws_col })
}

fn restore() {
    let original = ORIGINAL.lock().take();
    if let Some(original) = original {
        // Nobody is left to tell when it fails: the terminal is gone.
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, &original);
    }
}

fn install_hook() {
    HOOK.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            previous(panic);
        }));
    });
}
