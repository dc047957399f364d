//! What somebody asks for a name. Whatever is known of it, the answer fits, and is none to another question.

use std::net::IpAddr;

use dns::{MESSAGE_BYTES_MAX, NameQuestion, NoQuestion, Resolution};

pub fn dns(data: &[u8]) {
    let addresses: Vec<IpAddr> = (0..20).flat_map(|last| [[192, 0, 2, last].into(), IpAddr::from([0; 16])]).collect();
    match NameQuestion::read(data) {
        Ok(question) => {
            assert!(question.labels().map(|label| label.len().min(63) + 1).sum::<usize>() <= 255);
            for known in [
                Resolution::Name(addresses),
                Resolution::Name(Vec::new()),
                Resolution::Nothing,
                Resolution::Foreign,
                Resolution::Unknown,
            ] {
                let answer = question.answer(&known);
                assert!(answer.len() <= MESSAGE_BYTES_MAX && answer.get(..2) == data.get(..2));
                // An answer is never answered.
                assert_eq!(NameQuestion::read(&answer), Err(NoQuestion::Silence));
            }
        }
        Err(NoQuestion::Refusal(answer)) => assert_eq!(NameQuestion::read(&answer), Err(NoQuestion::Silence)),
        Err(NoQuestion::Silence) => (),
    }
}

pub fn corpus() -> Vec<Vec<u8>> {
    let header = [1, 2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    let question = |kind: u8| [&header[..], b"\x03web\x04shop\x03dvs\x00\x00", &[kind, 0, 1]].concat();
    let with_edns = [&question(1)[..], &[0, 0, 41, 16, 0, 0, 0, 0, 0, 0, 0]].concat();
    let compressed = [&header[..], &[0xc0, 12, 0, 1, 0, 1]].concat();
    vec![question(1), question(28), question(255), with_edns, compressed, header.to_vec()]
}
