//! Errors and versions as text.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};

use abi::{IpcError, errno};

use crate::failure::{BUSY, PANICKED};

/// An error as C knows it: its constant and what it means.
struct Text {
    name: &'static CStr,
    meaning: &'static CStr,
}

const fn text(name: &'static CStr, meaning: &'static CStr) -> Text {
    Text { name, meaning }
}

fn of_error(error: IpcError) -> Text {
    match error {
        IpcError::NotBound => {
            text(c"M3_ENOTBOUND", c"not bound to an endpoint, or the port was closed or inherited by fork")
        }
        IpcError::BadEndpoint => text(c"M3_EENDPOINT", c"not a valid endpoint for this call"),
        IpcError::NoSuchEndpoint => text(c"M3_ENOENDPOINT", c"nobody is bound to this endpoint"),
        IpcError::EndpointInUse => text(c"M3_EINUSE", c"the endpoint or the name is taken"),
        IpcError::TableFull => text(c"M3_EFULL", c"a table is full"),
        IpcError::DestinationDied => text(c"M3_EDSTDIED", c"the destination died before it took the message"),
        IpcError::SourceDied => text(c"M3_ESRCDIED", c"the peer died before it answered"),
        IpcError::TimedOut => text(c"M3_ETIMEDOUT", c"the time limit passed"),
        IpcError::WokenUp => text(c"M3_EWOKENUP", c"the wait was ended by a wake-up"),
        IpcError::NotWaiting => text(c"M3_ENOTWAITING", c"the destination does not wait for this reply"),
        IpcError::Deadlock => text(c"M3_EDEADLOCK", c"calls would have waited for each other for ever"),
        IpcError::Denied => text(c"M3_EDENIED", c"privileges do not allow this call or this peer"),
        IpcError::OutOfGrant => text(c"M3_ERANGE", c"the copy lies outside the granted memory"),
        IpcError::BadArgument => text(c"M3_EINVALID", c"a length or argument is out of range"),
        IpcError::NoLink => text(c"M3_ENOLINK", c"no link to the node of the peer"),
        IpcError::Fenced => text(c"M3_EFENCED", c"another owner of the endpoint was promoted"),
        IpcError::Corrupt => text(c"M3_ECORRUPT", c"the peer wrote garbage into the channel, which is closed"),
        IpcError::NoBroker => text(c"M3_ENOBROKER", c"the node daemon cannot be reached"),
        IpcError::DcNotRunning => text(c"M3_ENOTRUNNING", c"the container is not running on this node"),
        IpcError::UnknownGrant => text(c"M3_EGRANT", c"no such grant was ever given"),
        IpcError::Revoked => text(c"M3_EREVOKED", c"the grant was taken back"),
        IpcError::WrongDirection => text(c"M3_EACCESS", c"the grant does not allow this direction"),
        IpcError::Busy => text(c"M3_EPENDING", c"the endpoint owes answers or is being handed over"),
        IpcError::Moved => text(c"M3_EMOVED", c"the endpoint was handed over to another owner"),
        IpcError::Os(_) => text(c"M3_EOS", c"the kernel refused"),
    }
}

/// `None` for a number that no call returns.
fn of_number(number: c_int) -> Option<Text> {
    match number {
        0.. => Some(text(c"M3_OK", c"success")),
        BUSY => Some(text(c"M3_EBUSY", c"in use by another call, or the ring is full")),
        PANICKED => Some(text(c"M3_ELIBRARY", c"an error inside the library; its handle is closed")),
        _ => errno::from_published(number).map(of_error),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn m3_errname(number: c_int) -> *const c_char {
    of_number(number).map_or(c"M3_EUNKNOWN", |text| text.name).as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn m3_strerror(number: c_int) -> *const c_char {
    match errno::from_published(number) {
        Some(IpcError::Os(errno)) => of_kernel(errno),
        _ => of_number(number).map_or(c"unknown error", |text| text.meaning).as_ptr(),
    }
}

/// The text lives until the thread asks for the next one of the kernel.
fn of_kernel(errno: i32) -> *const c_char {
    thread_local! {
        static LAST: RefCell<CString> = RefCell::default();
    }
    let meaning = std::io::Error::from_raw_os_error(errno);
    let whole = CString::new(format!("the kernel refused: {meaning}")).unwrap_or_default();
    let kept = LAST.try_with(|last| {
        // Not borrowed: nothing else of this thread runs here.
        let mut last = last.borrow_mut();
        *last = whole;
        last.as_ptr()
    });
    // A thread at its end has no place to keep it.
    kept.unwrap_or(c"the kernel refused".as_ptr())
}

#[unsafe(no_mangle)]
pub extern "C" fn m3_version() -> *const c_char {
    const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => c"",
    };
    VERSION.as_ptr()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use ipc::errors::{self, ErrorSet};

    use super::*;

    const HEADER: &str = include_str!("../include/m3ipc.h");

    /// `#define NAME (NUMBER)` of the errors.
    fn defined() -> BTreeMap<String, c_int> {
        let lines = HEADER.lines().filter_map(|line| line.strip_prefix("#define M3_E"));
        lines
            .filter_map(|line| {
                let (name, rest) = line.split_once(' ')?;
                let number = rest.trim().strip_prefix('(')?.split(')').next()?.parse().ok()?;
                Some((format!("M3_E{name}"), number))
            })
            .collect()
    }

    #[test]
    fn header_defines_every_error_with_its_number_and_no_other() {
        let mut expected = BTreeMap::new();
        let numbers = IpcError::ALL.iter().map(|error| errno::published(*error));
        for number in numbers.chain([BUSY, PANICKED]) {
            let text = of_number(number).unwrap();
            assert!(
                expected.insert(text.name.to_str().unwrap().to_owned(), number).is_none(),
                "{number} has a name of its own"
            );
        }
        assert_eq!(defined(), expected);
    }

    /// The constants that a manual page lists under ERRORS.
    fn listed(page: &str) -> BTreeSet<String> {
        let errors = page.split("\n.Sh ").find(|section| section.starts_with("ERRORS")).unwrap();
        let tags = errors.lines().filter_map(|line| line.strip_prefix(".It Dv "));
        tags.flat_map(|tag| tag.split(" , Dv ")).map(str::to_owned).collect()
    }

    fn names(errors: impl IntoIterator<Item = IpcError>) -> BTreeSet<String> {
        errors.into_iter().map(|error| of_error(error).name.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn manual_pages_list_what_the_calls_answer() {
        use errors as of;
        let pages: [(&str, &[ErrorSet]); 8] = [
            (
                include_str!("../man/m3_send.3"),
                &[of::SEND, of::SENDREC, of::REPLY, of::NOTIFY, of::RECEIVE_ANY, of::RECEIVE_FROM],
            ),
            (include_str!("../man/m3_connect.3"), &[of::BIND_LATER, of::GETEP, of::WAIT4BIND, of::SET_NAME, of::FIND]),
            (include_str!("../man/m3_ring.3"), &[of::OPEN_RING, of::RING, of::RING_WAIT]),
            (include_str!("../man/m3_grant.3"), &[of::GRANT, of::REVOKE, of::COPY]),
            (include_str!("../man/m3_relay.3"), &[of::RELAY, of::NOTIFY_FOR]),
            (include_str!("../man/m3_set_privileges.3"), &[of::MANAGE, of::PRIVILEGES, of::BIND_FOR]),
            (
                include_str!("../man/m3_migration_start.3"),
                &[of::BIND_LATER, of::MIGRATION_START, of::MIGRATION_COMMIT, of::MIGRATION_ROLLBACK, of::PROMOTE],
            ),
            (include_str!("../man/m3_dc_info.3"), &[of::DC_INFO, of::ENDPOINT_INFO, of::LIST_INFO]),
        ];
        // The library's own: a pointer that is none, a number that is no endpoint, and a port that is in use.
        let of_library = [IpcError::BadArgument, IpcError::BadEndpoint];
        let busy = || "M3_EBUSY".to_owned();
        for (page, calls) in pages {
            let mut expected = names(calls.iter().flat_map(|call| call.iter()).chain(of_library));
            expected.insert(busy());
            assert_eq!(listed(page), expected, "{}", page.lines().find(|line| line.starts_with(".Dt")).unwrap());
        }
        // Of one peer: "also fails as m3_receive".
        let mut expected = names(of::RECEIVE_ANY.iter().chain([IpcError::SourceDied, IpcError::BadArgument]));
        expected.insert(busy());
        assert_eq!(listed(include_str!("../man/m3_wait.3")), expected);
    }

    #[test]
    fn texts_of_the_kernel_name_its_error() {
        let said = |number| {
            // SAFETY: it ends with a zero byte and lives until the next call.
            unsafe { CStr::from_ptr(m3_strerror(number)) }.to_str().unwrap().to_owned()
        };
        assert!(said(-1011).contains("the kernel refused: ") && said(-1011).contains("os error 11"));
        assert_eq!(said(-310), "not bound to an endpoint, or the port was closed or inherited by fork");
        assert_eq!(said(0), "success");
        assert_eq!(said(-2), "unknown error");
    }
}
