//! The memory of a channel on one node, and the local party that lives on it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use abi::IpcError;
use abi::layout::word;
use abi::ring::{Completion, Submission};
use proxy_link::{Carried, Indices, LocalChannel, LocalRole, Settled};

pub const ENTRIES: u32 = 8;
/// More than the out buffer takes at once, so that the data of a long entry travels in pieces.
pub const SLOT_BYTES: u32 = 72 << 10;
pub const ARENA_BYTES: u32 = ENTRIES * SLOT_BYTES;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    Pending,
    Taken,
    Withdrawn,
}

/// Fields of one writer are grouped: what the proxy writes survives the proxy.
pub struct Memory {
    pub role: LocalRole,
    // Local party's message.
    pub out: Option<Carried>,
    pub out_state: State,
    pub cancel: bool,
    // Ours, to the local party.
    pub inbound: Option<Carried>,
    pub inbound_withdrawn: bool,
    pub taken: u32,
    /// The message that the local party is taking, or took: it stores `taken` a moment later.
    pub won: u32,
    /// The request whose reply the local party waits for; 0 for none. Others find nobody.
    pub awaits: u32,
    /// The far party's request whose answer it waits for, as far as is known here; 0 for none.
    pub far_awaits: u32,
    /// Replies that came too late.
    pub dropped: u64,
    pub is_open: bool,
    pub mask_out: u64,
    pub mask_in: u64,
    /// Number and bits under way to the far side.
    pub carried: (u64, u64),
    /// Number of the far side's that was posted last.
    pub posted: u64,
    // Rings, by index; entries that were overwritten are not found.
    pub submissions: HashMap<u32, Submission>,
    pub completions: HashMap<u32, Completion>,
    pub submission_cursor: Indices,
    pub completion_cursor: Indices,
    pub arena: Vec<u8>,
    pub kicks: u64,
}

impl Memory {
    pub fn new(role: LocalRole) -> Memory {
        // Indices begin near the wrap, so that every run crosses it.
        let start = Indices { head: 0, tail: 0 };
        Memory {
            role,
            out: None,
            out_state: State::Taken,
            cancel: false,
            inbound: None,
            inbound_withdrawn: false,
            taken: 0,
            won: 0,
            awaits: 0,
            far_awaits: 0,
            dropped: 0,
            is_open: false,
            mask_out: 0,
            mask_in: 0,
            carried: (0, 0),
            posted: 0,
            submissions: HashMap::new(),
            completions: HashMap::new(),
            submission_cursor: start,
            completion_cursor: start,
            arena: vec![0; ARENA_BYTES as usize],
            kicks: 0,
        }
    }

    fn own_cursor(&mut self) -> &mut Indices {
        match self.role {
            LocalRole::Client => &mut self.submission_cursor,
            LocalRole::Server => &mut self.completion_cursor,
        }
    }
}

#[derive(Clone)]
pub struct SimChannel(pub Rc<RefCell<Memory>>);

impl LocalChannel for SimChannel {
    fn role(&self) -> LocalRole {
        self.0.borrow().role
    }

    fn mark_open(&self) {
        self.0.borrow_mut().is_open = true;
    }

    fn was_open(&self) -> bool {
        self.0.borrow().is_open
    }

    fn outbound(&self, forwarded: u32) -> Result<Option<Carried>, IpcError> {
        let memory = self.0.borrow();
        Ok(memory.out.clone().filter(|message| memory.out_state == State::Pending && message.word != forwarded))
    }

    fn mark_taken(&self, word: u32) {
        let mut memory = self.0.borrow_mut();
        if memory.out.as_ref().is_some_and(|m| m.word == word) && memory.out_state == State::Pending {
            memory.out_state = State::Taken;
        }
    }

    fn cancel_requested(&self) -> Option<u32> {
        let memory = self.0.borrow();
        memory.out.as_ref().filter(|_| memory.cancel && memory.out_state != State::Withdrawn).map(|m| m.word)
    }

    fn settle_withdrawn(&self, word: u32) {
        let mut memory = self.0.borrow_mut();
        if memory.out.as_ref().is_some_and(|m| m.word == word) && memory.out_state == State::Pending {
            let is_reply = word & word::KIND_MASK == word::REPLY;
            assert!(memory.cancel || is_reply, "only what was asked for is withdrawn");
            memory.out_state = State::Withdrawn;
        }
    }

    fn publish(&self, message: Carried) -> Result<(), IpcError> {
        let mut memory = self.0.borrow_mut();
        if message.word & word::KIND_MASK == word::REPLY && !word::answers(message.word, memory.awaits) {
            memory.dropped += 1;
            return Err(IpcError::NotWaiting);
        }
        if let Some(before) = &memory.inbound {
            assert_ne!(before.word, message.word, "published twice");
            assert!(before.word == memory.taken || memory.inbound_withdrawn, "published over a message nobody took");
        }
        match message.word & word::KIND_MASK {
            word::REQUEST => memory.far_awaits = message.word,
            word::SEND => memory.far_awaits = 0,
            _ => {}
        }
        memory.inbound = Some(message);
        memory.inbound_withdrawn = false;
        Ok(())
    }

    fn published(&self) -> u32 {
        self.0.borrow().inbound.as_ref().map_or(0, |m| m.word)
    }

    fn taken(&self) -> u32 {
        self.0.borrow().taken
    }

    fn withdraw(&self, word: u32) -> Option<Settled> {
        let mut memory = self.0.borrow_mut();
        assert_eq!(memory.inbound.as_ref().map(|m| m.word), Some(word));
        if memory.taken == word {
            memory.far_awaits = 0;
            return Some(Settled::Taken);
        }
        if memory.won == word {
            return None;
        }
        memory.inbound_withdrawn = true;
        memory.far_awaits = 0;
        Some(Settled::Withdrawn)
    }

    fn pending_notification(&self) -> Option<(u64, u64)> {
        let memory = &mut *self.0.borrow_mut();
        if memory.carried.1 == 0 && memory.mask_out != 0 {
            memory.carried = (memory.carried.0 + 1, std::mem::take(&mut memory.mask_out));
        }
        (memory.carried.1 != 0).then_some(memory.carried)
    }

    fn confirm_notification(&self, number: u64) {
        let memory = &mut *self.0.borrow_mut();
        if memory.carried.0 <= number {
            memory.carried.1 = 0;
        }
    }

    fn notify(&self, number: u64, mask: u64) {
        let memory = &mut *self.0.borrow_mut();
        if number > memory.posted {
            memory.mask_in |= mask;
            memory.posted = number;
        }
    }

    fn notified(&self) -> u64 {
        self.0.borrow().posted
    }

    fn entries(&self) -> Result<Indices, IpcError> {
        Ok(*self.0.borrow_mut().own_cursor())
    }

    fn confirm(&self, head: u32) {
        self.0.borrow_mut().own_cursor().head = head;
    }

    fn put_count(&self) -> u32 {
        let memory = self.0.borrow();
        match memory.role {
            LocalRole::Client => memory.completion_cursor.tail,
            LocalRole::Server => memory.submission_cursor.tail,
        }
    }

    fn submission(&self, index: u32) -> Result<Submission, IpcError> {
        self.0.borrow().submissions.get(&(index % ENTRIES)).copied().ok_or(IpcError::Corrupt)
    }

    fn completion(&self, index: u32) -> Result<Completion, IpcError> {
        self.0.borrow().completions.get(&(index % ENTRIES)).copied().ok_or(IpcError::Corrupt)
    }

    fn put_submission(&self, submission: &Submission) -> Result<(), IpcError> {
        let mut memory = self.0.borrow_mut();
        let Indices { head, tail } = memory.submission_cursor;
        assert!(tail - head < ENTRIES, "the server's ring overflows");
        memory.submissions.insert(tail % ENTRIES, *submission);
        memory.submission_cursor.tail += 1;
        Ok(())
    }

    fn put_completion(&self, completion: &Completion) -> Result<(), IpcError> {
        let mut memory = self.0.borrow_mut();
        let Indices { head, tail } = memory.completion_cursor;
        assert!(tail - head < ENTRIES, "the client's ring overflows");
        memory.completions.insert(tail % ENTRIES, *completion);
        memory.completion_cursor.tail += 1;
        Ok(())
    }

    fn kick(&self) {
        self.0.borrow_mut().kicks += 1;
    }

    fn arena_bytes(&self) -> u32 {
        ARENA_BYTES
    }

    fn copy_out(&self, offset: u32, data: &mut [u8]) -> Result<(), IpcError> {
        let offset = offset as usize;
        data.copy_from_slice(self.0.borrow().arena.get(offset..offset + data.len()).ok_or(IpcError::OutOfGrant)?);
        Ok(())
    }

    fn copy_in(&self, offset: u32, data: &[u8]) -> Result<(), IpcError> {
        let (offset, mut memory) = (offset as usize, self.0.borrow_mut());
        memory.arena.get_mut(offset..offset + data.len()).ok_or(IpcError::OutOfGrant)?.copy_from_slice(data);
        Ok(())
    }
}
