//! Message queues of the kernel: one there, one back.

pub mod posix {
    use nix::mqueue::{MQ_OFlag, MqAttr, MqdT, mq_close, mq_open, mq_receive, mq_send, mq_unlink};
    use nix::sys::stat::Mode;

    use super::super::{Caller, FRAME_BYTES, Frame, STOP, frame, number_of};
    use crate::Outcome;

    const MODE: Mode = Mode::from_bits_truncate(0o600);

    pub struct Queues {
        there: MqdT,
        back: MqdT,
    }

    fn names(id: &str) -> [String; 2] {
        [format!("/dvs-bench-{id}-there"), format!("/dvs-bench-{id}-back")]
    }

    /// Takes the names away; there may be none.
    pub fn clean(id: &str) {
        for name in names(id) {
            let _ = mq_unlink(name.as_str());
        }
    }

    pub fn serve(ready: impl FnOnce(&str) -> Outcome<()>) -> Outcome<()> {
        let id = std::process::id().to_string();
        let attributes = MqAttr::new(0, 4, FRAME_BYTES as i64, 0);
        let flags = MQ_OFlag::O_CREAT | MQ_OFlag::O_EXCL | MQ_OFlag::O_RDWR;
        let [there, back] = names(&id);
        let there = mq_open(there.as_str(), flags, MODE, Some(&attributes))?;
        let back = mq_open(back.as_str(), flags, MODE, Some(&attributes))?;
        ready(&id)?;
        let (mut frame, mut priority): (Frame, u32) = ([0; FRAME_BYTES], 0);
        while number_of(&frame) != STOP {
            mq_receive(&there, &mut frame, &mut priority)?;
            mq_send(&back, &frame, 0)?;
        }
        mq_close(there)?;
        mq_close(back)?;
        Ok(())
    }

    pub fn connect(id: &str) -> Outcome<Queues> {
        let [there, back] = names(id);
        let there = mq_open(there.as_str(), MQ_OFlag::O_WRONLY, MODE, None)?;
        let back = mq_open(back.as_str(), MQ_OFlag::O_RDONLY, MODE, None)?;
        Ok(Queues { there, back })
    }

    impl Caller for Queues {
        fn call(&mut self, number: u64) -> Outcome<u64> {
            mq_send(&self.there, &frame(number), 0)?;
            let (mut answer, mut priority): (Frame, u32) = ([0; FRAME_BYTES], 0);
            mq_receive(&self.back, &mut answer, &mut priority)?;
            Ok(number_of(&answer))
        }
    }
}

pub mod sysv {
    use std::io;

    use super::super::{Caller, FRAME_BYTES, Frame, STOP, frame, number_of};
    use crate::Outcome;

    /// A message as the kernel wants it: its type, which is not 0, and its bytes.
    #[repr(C)]
    struct Envelope {
        kind: libc::c_long,
        frame: Frame,
    }

    #[derive(Clone, Copy)]
    struct Queue(i32);

    impl Queue {
        fn new() -> io::Result<Queue> {
            // SAFETY: no pointers.
            let id = unsafe { libc::msgget(libc::IPC_PRIVATE, libc::IPC_CREAT | 0o600) };
            if id < 0 { Err(io::Error::last_os_error()) } else { Ok(Queue(id)) }
        }

        fn send(self, frame: Frame) -> io::Result<()> {
            let envelope = Envelope { kind: 1, frame };
            // SAFETY: the kernel reads the type and `FRAME_BYTES` behind it, all of which is the envelope.
            let sent = unsafe { libc::msgsnd(self.0, (&raw const envelope).cast(), FRAME_BYTES, 0) };
            if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
        }

        fn receive(self) -> io::Result<Frame> {
            let mut envelope = Envelope { kind: 0, frame: [0; FRAME_BYTES] };
            // SAFETY: the kernel writes the type and at most `FRAME_BYTES` behind it, all of which is the envelope.
            let got = unsafe { libc::msgrcv(self.0, (&raw mut envelope).cast(), FRAME_BYTES, 0, 0) };
            if got < 0 { Err(io::Error::last_os_error()) } else { Ok(envelope.frame) }
        }

        fn remove(self) {
            // SAFETY: removal takes no buffer.
            unsafe { libc::msgctl(self.0, libc::IPC_RMID, std::ptr::null_mut()) };
        }
    }

    pub struct Queues {
        there: Queue,
        back: Queue,
    }

    /// Removes both; they may be gone.
    pub fn clean(address: &str) {
        if let Ok(queues) = connect(address) {
            queues.there.remove();
            queues.back.remove();
        }
    }

    pub fn serve(ready: impl FnOnce(&str) -> Outcome<()>) -> Outcome<()> {
        let (there, back) = (Queue::new()?, Queue::new()?);
        ready(&format!("{}:{}", there.0, back.0))?;
        loop {
            let frame = there.receive()?;
            back.send(frame)?;
            if number_of(&frame) == STOP {
                return Ok(());
            }
        }
    }

    pub fn connect(address: &str) -> Outcome<Queues> {
        let (there, back) = address.split_once(':').ok_or("two queues have two numbers")?;
        Ok(Queues { there: Queue(there.parse()?), back: Queue(back.parse()?) })
    }

    impl Caller for Queues {
        fn call(&mut self, number: u64) -> Outcome<u64> {
            self.there.send(frame(number))?;
            Ok(number_of(&self.back.receive()?))
        }
    }
}
