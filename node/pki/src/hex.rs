//! Bytes as hexadecimal digits: serials, fingerprints, hashes.

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `None`: no pairs of digits, or none at all.
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text.chars().map(|digit| digit.to_digit(16).map(|digit| digit as u8)).collect();
    let digits = digits.filter(|digits| !digits.is_empty() && digits.len().is_multiple_of(2))?;
    digits.chunks(2).map(|pair| Some(pair.first()? << 4 | pair.last()?)).collect()
}
