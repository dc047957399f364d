//! The terminal on which a job was started, and its likeness on the program's node.
//!
//! Two ways. *Whole*: input and output are terminals. Then the deputy makes its own raw while it is in the foreground,
//! so that keys reach the likeness as bytes, and what Ctrl-C and Ctrl-Z mean is decided there. *Lines*: one of them is
//! none (a pager, a file). Then the own terminal stays as it is, keys that mean signals are the own kernel's, and it is
//! read only while it gives lines: who takes it out of that mode reads it himself.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::process::getpgrp;
use rustix::pty::{OpenptFlags, openpt, unlockpt};
use rustix::termios::{
    ControlModes, InputModes, LocalModes, OptionalActions, OutputModes, SpecialCodeIndex, Termios, Winsize, tcgetattr,
    tcgetpgrp, tcgetwinsize, tcsetattr, tcsetwinsize,
};
use vos_api::jobs::JobTerminal;

const CODES: [SpecialCodeIndex; 17] = [
    SpecialCodeIndex::VINTR,
    SpecialCodeIndex::VQUIT,
    SpecialCodeIndex::VERASE,
    SpecialCodeIndex::VKILL,
    SpecialCodeIndex::VEOF,
    SpecialCodeIndex::VTIME,
    SpecialCodeIndex::VMIN,
    SpecialCodeIndex::VSWTC,
    SpecialCodeIndex::VSTART,
    SpecialCodeIndex::VSTOP,
    SpecialCodeIndex::VSUSP,
    SpecialCodeIndex::VEOL,
    SpecialCodeIndex::VREPRINT,
    SpecialCodeIndex::VDISCARD,
    SpecialCodeIndex::VWERASE,
    SpecialCodeIndex::VLNEXT,
    SpecialCodeIndex::VEOL2,
];

/// How the deputy uses its terminal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    Whole,
    Lines,
}

/// The deputy's.
#[derive(Debug)]
pub struct OwnTerminal {
    file: OwnedFd,
    how: Use,
    hold: Mutex<Hold>,
}

#[derive(Debug, Default)]
struct Hold {
    /// The program runs, and has not stopped: whoever finds the deputy in the foreground takes the terminal.
    is_wanted: bool,
    /// As it was, while it is raw.
    before: Option<Termios>,
}

impl OwnTerminal {
    pub fn new(file: OwnedFd, how: Use) -> OwnTerminal {
        OwnTerminal { file, how, hold: Mutex::default() }
    }

    pub fn how(&self) -> Use {
        self.how
    }

    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// As the likeness shall begin.
    pub fn describe(&self) -> io::Result<JobTerminal> {
        let modes = tcgetattr(&self.file)?;
        let mut output = modes.output_modes;
        if self.how == Use::Lines {
            // The own terminal does it.
            output.remove(OutputModes::OPOST);
        }
        Ok(JobTerminal {
            size: self.size(),
            modes: [modes.input_modes.bits(), output.bits(), modes.control_modes.bits(), modes.local_modes.bits()],
            codes: CODES.map(|code| modes.special_codes[code]).to_vec(),
        })
    }

    /// Rows and columns in one word.
    pub fn size(&self) -> u64 {
        let size = tcgetwinsize(&self.file).ok();
        size.map_or(0, |size| u64::from(size.ws_row) << 16 | u64::from(size.ws_col))
    }

    /// The program has begun, or goes on.
    pub fn want(&self) {
        self.hold.lock().is_wanted = true;
        self.take();
    }

    /// Takes the terminal for the job, if the shell gave it this process. False: nothing is to be read of it now.
    pub fn take(&self) -> bool {
        let is_ours = tcgetpgrp(&self.file).is_ok_and(|group| group == getpgrp());
        let Ok(modes) = tcgetattr(&self.file) else { return true };
        if self.how == Use::Lines {
            return is_ours && modes.local_modes.contains(LocalModes::ICANON);
        }
        let mut hold = self.hold.lock();
        if is_ours && hold.is_wanted && hold.before.is_none() {
            let mut raw = modes.clone();
            raw.make_raw();
            if tcsetattr(&self.file, OptionalActions::Drain, &raw).is_ok() {
                hold.before = Some(modes);
            }
        }
        is_ours && hold.is_wanted
    }

    /// Makes it what it was, until the program goes on.
    pub fn give_back(&self) {
        let mut hold = self.hold.lock();
        hold.is_wanted = false;
        if let Some(modes) = hold.before.take() {
            let _ = tcsetattr(&self.file, OptionalActions::Drain, &modes);
        }
    }
}

/// On the program's node.
pub struct Likeness {
    pub master: OwnedFd,
    pub slave: OwnedFd,
}

impl Likeness {
    /// Becomes the terminal of this process's session.
    pub fn new() -> Result<Likeness, Errno> {
        use rustix::pty::ioctl_tiocgptpeer;
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags)?;
        unlockpt(&master)?;
        let slave = ioctl_tiocgptpeer(&master, flags)?;
        rustix::process::ioctl_tiocsctty(&slave)?;
        Ok(Likeness { master, slave })
    }

    /// As the deputy's is.
    pub fn be_like(self, like: &JobTerminal) -> Result<Likeness, Errno> {
        let mut modes = tcgetattr(&self.slave)?;
        let [input, output, control, local] = like.modes;
        modes.input_modes = InputModes::from_bits_truncate(input);
        modes.output_modes = OutputModes::from_bits_truncate(output);
        // Speed and size of a byte mean nothing here.
        let given = ControlModes::from_bits_truncate(control);
        modes.control_modes.set(ControlModes::HUPCL, given.contains(ControlModes::HUPCL));
        modes.local_modes = LocalModes::from_bits_truncate(local);
        for (code, value) in CODES.iter().zip(&like.codes) {
            modes.special_codes[*code] = *value;
        }
        tcsetattr(&self.slave, OptionalActions::Now, &modes)?;
        resize(&self.master, like.size);
        Ok(self)
    }
}

/// `size` as of [`OwnTerminal::size`]. The kernel tells the programs there.
pub fn resize(master: impl AsFd, size: u64) {
    let (rows, columns) = ((size >> 16) as u16, size as u16);
    if rows > 0 && columns > 0 {
        let _ = tcsetwinsize(master, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 });
    }
}
