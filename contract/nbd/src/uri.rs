//! Where an export is: `nbd://HOST[:PORT]/EXPORT`, `nbd+unix:///EXPORT?socket=PATH`
//! (<https://github.com/NetworkBlockDevice/nbd/blob/master/doc/uri.md>).

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Registered for the protocol.
pub const PORT: u16 = 10809;
const NAME_BYTES_MAX: usize = 4096;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NbdPlace {
    /// A name or an address, and a port.
    Tcp(String, u16),
    Unix(PathBuf),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NbdUri {
    pub place: NbdPlace,
    /// Empty: the one that a server has unless told otherwise.
    pub export: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UriError {
    #[error("it is not of the form nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH")]
    Form,
    #[error("encrypted connections (nbds) to an NBD server are not made: put it behind a tunnel, or use nbd://")]
    Encrypted,
    #[error("the port is a number from 1 to 65535")]
    Port,
    #[error("an export's name has at most {NAME_BYTES_MAX} bytes, and % begins two hexadecimal digits")]
    Name,
}

impl NbdUri {
    /// Whether it is meant to be one.
    pub fn is_one(text: &str) -> bool {
        text.split_once("://").is_some_and(|(scheme, _)| scheme.starts_with("nbd"))
    }
}

impl FromStr for NbdUri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<NbdUri, UriError> {
        let (scheme, rest) = text.split_once("://").ok_or(UriError::Form)?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (name, query) = path.split_once('?').unwrap_or((path, ""));
        let export = decoded(name)?;
        match scheme {
            "nbd" if query.is_empty() => Ok(NbdUri { place: tcp(authority)?, export }),
            "nbd+unix" if authority.is_empty() => {
                let socket = decoded(query.strip_prefix("socket=").ok_or(UriError::Form)?)?;
                if socket.is_empty() {
                    return Err(UriError::Form);
                }
                Ok(NbdUri { place: NbdPlace::Unix(socket.into()), export })
            }
            "nbds" | "nbds+unix" => Err(UriError::Encrypted),
            _ => Err(UriError::Form),
        }
    }
}

impl fmt::Display for NbdUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let export = encoded(&self.export, b"");
        match &self.place {
            NbdPlace::Tcp(host, PORT) => write!(f, "nbd://{}/{export}", bracketed(host)),
            NbdPlace::Tcp(host, port) => write!(f, "nbd://{}:{port}/{export}", bracketed(host)),
            NbdPlace::Unix(path) => write!(f, "nbd+unix:///{export}?socket={}", encoded(&path.to_string_lossy(), b"/")),
        }
    }
}

/// An address of IPv6 is in brackets.
fn tcp(authority: &str) -> Result<NbdPlace, UriError> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or(UriError::Form)?;
            (host, if port.is_empty() { None } else { Some(port.strip_prefix(':').ok_or(UriError::Form)?) })
        }
        None => authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port))),
    };
    if host.is_empty() || host.contains(['@', ' ']) {
        return Err(UriError::Form);
    }
    let port = port.map_or(Ok(PORT), |port| port.parse().map_err(|_| UriError::Port))?;
    if port == 0 { Err(UriError::Port) } else { Ok(NbdPlace::Tcp(host.to_owned(), port)) }
}

fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

fn decoded(text: &str) -> Result<String, UriError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16)).ok_or(UriError::Name);
        let (high, low) = (digit()?, digit()?);
        bytes.push((high << 4 | low) as u8);
    }
    let is_short = bytes.len() <= NAME_BYTES_MAX && !bytes.contains(&0);
    String::from_utf8(bytes).ok().filter(|_| is_short).ok_or(UriError::Name)
}

fn encoded(text: &str, more: &[u8]) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || more.contains(&byte);
    text.bytes()
        .map(|byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_they_are_written() {
        for text in [
            "nbd://server/",
            "nbd://server/disk",
            "nbd://127.0.0.1:10810/a%20disk",
            "nbd://[fd00::1]/disk",
            "nbd://[fd00::1]:99/disk",
            "nbd+unix:///?socket=/run/a.sock",
            "nbd+unix:///disk?socket=/run/a%3Fb.sock",
        ] {
            assert_eq!(text.parse::<NbdUri>().map(|uri| uri.to_string()), Ok(text.to_owned()));
        }
        assert_eq!("nbd://server".parse::<NbdUri>(), "nbd://server:10809/".parse());
    }

    #[test]
    fn what_is_no_place_is_refused() {
        let why = |text: &str| text.parse::<NbdUri>().err();
        for text in [
            "server",
            "nbd://",
            "nbd:///disk",
            "nbd://a@b/",
            "nbd+unix:///disk",
            "nbd+unix://x/?socket=/a",
            "http://x/",
        ] {
            assert_eq!(why(text), Some(UriError::Form), "{text}");
        }
        assert_eq!(why("nbds://server/"), Some(UriError::Encrypted));
        assert_eq!((why("nbd://a:0/"), why("nbd://a:99999/")), (Some(UriError::Port), Some(UriError::Port)));
        assert_eq!((why("nbd://a/%4"), why("nbd://a/%00")), (Some(UriError::Name), Some(UriError::Name)));
    }
}
