//! Whatever bytes come from the FUSE descriptor, parsing answers and never panics; what it accepts stays inside the
//! bytes.

use gate_fuse::kernel::{InHeader, WriteIn, opcode};
use gate_fuse::request::{Body, parse};
use proptest::prelude::*;
use zerocopy::IntoBytes;

fn header(opcode: u32, bytes: usize, extensions: u16) -> InHeader {
    let len = (size_of::<InHeader>() + bytes) as u32;
    InHeader { len, opcode, unique: 4, nodeid: 1, total_extlen: extensions, ..InHeader::default() }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4096) })]

    #[test]
    fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
        let _ = parse(&bytes);
    }

    #[test]
    fn any_arguments_of_any_operation_are_parsed_or_refused(
        opcode in 0_u32..60,
        extensions in prop_oneof![Just(0_u16), any::<u16>()],
        arguments in proptest::collection::vec(prop_oneof![Just(0_u8), any::<u8>()], 0..300),
    ) {
        let bytes = [header(opcode, arguments.len(), extensions).as_bytes(), &arguments].concat();
        if let Ok(request) = parse(&bytes) {
            prop_assert_eq!(request.key(), 4);
        }
    }

    #[test]
    fn write_carries_exactly_the_bytes_it_says(size in 0_u32..200, data in proptest::collection::vec(any::<u8>(), 0..200)) {
        let head = WriteIn { size, ..WriteIn::default() };
        let arguments = [head.as_bytes(), &data].concat();
        let bytes = [header(opcode::WRITE, arguments.len(), 0).as_bytes(), &arguments].concat();
        match parse(&bytes) {
            Ok(request) => match request.body {
                Body::Write { data: got, .. } => prop_assert_eq!(got, &data[..size as usize]),
                other => prop_assert!(false, "{:?}", other),
            },
            Err(_) => prop_assert!(size as usize > data.len()),
        }
    }

    #[test]
    fn names_end_at_the_first_nul(name in "[a-z]{1,255}", more in "[a-z]{0,9}") {
        let arguments = [name.as_bytes(), b"\0", more.as_bytes()].concat();
        let bytes = [header(opcode::LOOKUP, arguments.len(), 0).as_bytes(), &arguments].concat();
        let request = parse(&bytes).expect("a look-up");
        prop_assert_eq!(request.body, Body::Lookup { name: name.as_bytes() });
    }
}
