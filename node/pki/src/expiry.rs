//! Until when a certificate is good. The one field is read where it lies (RFC 5280, 4.1): what checks certificates does
//! not show it.

use std::path::Path;

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use crate::PkiError;

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
/// The version, which the first version of certificates lacks.
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// Second since 1970 at which the first certificate in a file ends.
pub fn expiry_s(path: &Path) -> Result<u64, PkiError> {
    let text = std::fs::read(path).map_err(|source| PkiError::Read { path: path.to_owned(), source })?;
    let certificate = CertificateDer::from_pem_slice(&text).ok();
    let expires = certificate.and_then(|certificate| not_after_s(&certificate));
    expires.ok_or_else(|| PkiError::Malformed { path: path.to_owned(), what: "a certificate" })
}

fn not_after_s(certificate: &[u8]) -> Option<u64> {
    let (whole, _) = field(certificate, SEQUENCE)?;
    let (mut body, _) = field(whole, SEQUENCE)?;
    if let Some((_, rest)) = field(body, VERSION) {
        body = rest;
    }
    // Serial number, algorithm, issuer.
    for tag in [INTEGER, SEQUENCE, SEQUENCE] {
        (_, body) = field(body, tag)?;
    }
    let (validity, _) = field(body, SEQUENCE)?;
    let (_, not_after) = field(validity, UTC_TIME).or_else(|| field(validity, GENERALIZED_TIME))?;
    match field(not_after, UTC_TIME) {
        // Two digits of the year: 50 is 1950 (RFC 5280, 4.1.2.5.1).
        Some((text, _)) => {
            let year = number(text.get(..2)?)?;
            second(if year >= 50 { 1900 + year } else { 2000 + year }, text.get(2..)?)
        }
        None => {
            let (text, _) = field(not_after, GENERALIZED_TIME)?;
            second(number(text.get(..4)?)?, text.get(4..)?)
        }
    }
}

/// Contents of the field that begins here, if it has this tag, and what follows it.
fn field(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&[found, first], rest) = bytes.split_first_chunk::<2>()?;
    let (length, rest) = match first {
        short @ 0..=0x7f => (usize::from(short), rest),
        0x81 => (usize::from(*rest.first()?), rest.get(1..)?),
        0x82 => {
            let (length, rest) = rest.split_first_chunk::<2>()?;
            (usize::from(u16::from_be_bytes(*length)), rest)
        }
        _ => return None,
    };
    if found == tag { Some((rest.get(..length)?, rest.get(length..)?)) } else { None }
}

fn number(digits: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(digits).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
    text.parse().ok()
}

/// `MMDDHHMMSSZ` of a year, as seconds since 1970.
fn second(year: u64, rest: &[u8]) -> Option<u64> {
    let two = |at: usize| number(rest.get(at..at + 2)?);
    let (month, day, hour, minute, second) = (two(0)?, two(2)?, two(4)?, two(6)?, two(8)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    if rest.get(10..) != Some(b"Z") {
        return None;
    }
    // Years begin in March, so that the day that some have more is the last one.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year.checked_sub(1)?, month + 9) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 1;
    // From 1 March of the year 0 to 1 January 1970.
    let days = days.checked_sub(719_468)?;
    Some(days * 86_400 + hour * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Authority, NODE_CERT, NodeRequest, Validity};

    #[test]
    fn node_certificate_ends_when_it_was_said_to() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::create(&dir.path().join("ca"), "test").unwrap();
        let valid = Validity::of_a_node();
        let request = NodeRequest { node: "n1", addresses: &[], valid };
        authority.issue_node(&request, &dir.path().join("n1")).unwrap();
        let expires = expiry_s(&dir.path().join("n1").join(NODE_CERT)).unwrap();
        let until = valid.until.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        assert_eq!(expires, until);
        assert!(expiry_s(&dir.path().join("ca").join(crate::CA_CERT)).unwrap() > expires);
    }

    #[test]
    fn days_are_counted_as_the_calendar_has_them() {
        assert_eq!(second(1970, b"0101000000Z"), Some(0));
        assert_eq!(second(2000, b"0229120000Z"), Some(951_825_600));
        assert_eq!(second(2026, b"1124093817Z"), Some(1_795_513_097));
        assert_eq!(second(2026, b"1324093817Z"), None);
        assert_eq!(second(2026, b"1124093817+"), None);
    }

    #[test]
    fn what_is_no_certificate_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.crt");
        assert!(expiry_s(&path).is_err());
        std::fs::write(&path, "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n").unwrap();
        assert!(expiry_s(&path).is_err());
        for length in 0..40_u8 {
            assert_eq!(not_after_s(&[SEQUENCE, length, SEQUENCE, 0x82, 0xff]), None);
        }
    }
}
