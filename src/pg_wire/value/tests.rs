//! Forms of values: text against binary, and what is refused.

use proptest::prelude::*;

use super::*;

const PLAIN: ValueOptions = ValueOptions { numeric_as_string: false };

fn text(type_oid: u32, text: impl AsRef<[u8]>) -> String {
    let mut out = Vec::new();
    json_from_text(&mut out, type_oid, text.as_ref(), PLAIN).unwrap();
    String::from_utf8(out).unwrap()
}

fn binary(type_oid: u32, bytes: impl AsRef<[u8]>) -> String {
    let mut out = Vec::new();
    json_from_binary(&mut out, type_oid, bytes.as_ref(), PLAIN).unwrap();
    String::from_utf8(out).unwrap()
}

fn refused(type_oid: u32, value: &[u8]) -> ValueError {
    let mut out = b"before".to_vec();
    let error = json_from_text(&mut out, type_oid, value, PLAIN).unwrap_err();
    assert_eq!(out, b"before", "an error writes nothing");
    error
}

#[test]
fn the_least_length_of_a_value_is_never_above_its_own() {
    let samples: [(u32, &[u8]); 12] = [
        (oid::TEXT, b"a \"b\" \\ \n\t\x01\x08\x7f"),
        (oid::TEXT, "\u{e4}\u{1f600}".as_bytes()),
        (oid::TEXT, b"\xff\xfe"),
        (oid::INT4, b"-12"),
        (oid::NUMERIC, b"NaN"),
        (oid::BOOL, b"t"),
        (oid::BYTEA, b"\\x00ff01"),
        (oid::JSONB, b"{\"a\": [1, null]}"),
        (oid::TIMESTAMPTZ, b"2024-01-02 03:04:05.6+00"),
        (oid::UUID, b"00000000-0000-0000-0000-000000000000"),
        (1009, b"{a,NULL,\"b\\\"c\"}"),
        (600, b"(1,2)"),
    ];
    for (type_oid, value) in samples {
        let least = json_least(type_oid.into(), Column::Text(value));
        let long = text(type_oid, value).len();
        assert!(least <= long && least * 3 + 12 > long, "{type_oid}: {least} of {long}");
    }
    assert_eq!(json_least(oid::TEXT.into(), Column::Null), 0);
    let (least, long) = (json_least(oid::BYTEA.into(), Column::Binary(&[7; 99])), 134);
    assert!(least <= long && least > 90);
}

#[test]
fn a_value_without_its_form_is_an_error_that_names_it() {
    assert_eq!(
        refused(oid::INT4, b"12a").to_string(),
        "a value of type 23 (int4) reads \"12a\", expected an integer"
    );
    for (type_oid, value) in [
        (oid::INT4, &b""[..]),
        (oid::INT4, b"-"),
        (oid::INT4, b"01"),
        (oid::INT4, b"+1"),
        (oid::INT4, b"1.0"),
        (oid::NUMERIC, b"1."),
        (oid::NUMERIC, b".5"),
        (oid::NUMERIC, b"1e"),
        (oid::NUMERIC, b"00"),
        (oid::FLOAT8, b"nan"),
        (oid::FLOAT8, b"1e+"),
        (oid::BOOL, b"yes"),
        (oid::BYTEA, b"\\x0"),
        (oid::BYTEA, b"\\x0g"),
        (oid::BYTEA, b"\\400"),
        (oid::BYTEA, b"\\"),
        (oid::JSON, b""),
        (oid::JSONB, b"\"\xff\""),
        (oid::TIMESTAMP, b"2024-01-02"),
        (oid::TIMESTAMP, b"2024-01-02 03:04:05+00"),
        (oid::TIMESTAMPTZ, b"2024-01-02 03:04:05"),
        (oid::TIMESTAMPTZ, b"Tue Jan 02 03:04:05 2024 UTC"),
        (oid::TIMESTAMPTZ, b"2024-01-02 03:04:05.1234567+00"),
        (1007, b"1,2"),
        (1007, b"{1,2"),
        (1007, b"{1,}"),
        (1007, b"{,1}"),
        (1007, b"{1}2"),
        (1007, b"{{{{{{{1}}}}}}}"),
        (1007, b"{\"1}"),
        (1007, b"{1 {2}}"),
        (1007, b"[1:2={1}"),
        (1007, b"{}{}"),
    ] {
        assert!(matches!(refused(type_oid, value), ValueError::Malformed { .. }));
    }
}

#[test]
fn a_binary_value_of_another_length_is_an_error() {
    let fixed = [
        (oid::BOOL, 1),
        (oid::INT2, 2),
        (oid::INT4, 4),
        (oid::INT8, 8),
        (oid::FLOAT4, 4),
        (oid::FLOAT8, 8),
        (oid::CHAR, 1),
        (oid::UUID, 16),
        (oid::DATE, 4),
        (oid::TIME, 8),
        (oid::TIMETZ, 12),
        (oid::TIMESTAMP, 8),
        (oid::TIMESTAMPTZ, 8),
        (oid::INTERVAL, 16),
        (oid::OID, 4),
        (oid::XID8, 8),
        (oid::PG_LSN, 8),
    ];
    for (type_oid, length) in fixed {
        for other in (0..24).filter(|other| *other != length) {
            let mut out = Vec::new();
            let read = json_from_binary(&mut out, type_oid, &vec![0; other], PLAIN);
            assert!(read.is_err() && out.is_empty(), "{type_oid} of {other} bytes");
        }
        binary(type_oid, vec![0; length]);
    }
}

#[test]
fn a_type_without_a_known_binary_form_is_told_before_and_after() {
    for type_oid in [oid::INET, oid::MONEY, 1041, 3904, 70_000, 0] {
        assert!(!has_binary_codec(type_oid));
        let mut out = Vec::new();
        let error = json_from_binary(&mut out, type_oid, b"x", PLAIN).unwrap_err();
        assert_eq!(error, ValueError::NoBinaryForm { type_oid });
    }
    for type_oid in [oid::INT4, 1007, oid::INTERVAL, 1187, oid::JSONB, 3807, oid::NUMERIC, 1231] {
        assert!(has_binary_codec(type_oid));
    }
    let mut out = Vec::new();
    json_opaque(&mut out, b"\x00\xff");
    assert_eq!(out, br#""\\x00ff""#);
}

#[test]
fn numeric_is_a_string_where_asked_for_and_integers_never_are() {
    let strings = ValueOptions { numeric_as_string: true };
    for (type_oid, value, expected) in [
        (oid::NUMERIC, "1.50", "\"1.50\""),
        (oid::NUMERIC, "NaN", "\"NaN\""),
        (oid::INT8, "9007199254740993", "9007199254740993"),
        (oid::FLOAT8, "1.5", "1.5"),
        (1231, "{1.50,NULL}", "[\"1.50\",null]"),
    ] {
        let mut out = Vec::new();
        json_from_text(&mut out, type_oid, value.as_bytes(), strings).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
    let mut out = Vec::new();
    let half = [0, 1, 255, 255, 0x40, 0, 0, 2, 0x13, 0x88];
    json_from_binary(&mut out, oid::NUMERIC, &half, strings).unwrap();
    assert_eq!(out, b"\"-0.50\"");
}

#[test]
fn a_numeric_no_server_sends_is_an_error_or_a_number() {
    let numeric = |count: u16, weight: u16, sign: u16, scale: u16, groups: &[u16]| {
        let head = [count, weight, sign, scale];
        head.iter().chain(groups).flat_map(|part| part.to_be_bytes()).collect::<Vec<u8>>()
    };
    let read = |bytes: Vec<u8>| {
        let mut out = Vec::new();
        json_from_binary(&mut out, oid::NUMERIC, &bytes, PLAIN).map(|()| out)
    };
    assert_eq!(read(numeric(2, 1, 0, 0, &[0, 7])).unwrap(), b"7");
    assert_eq!(read(numeric(0, 3, 0, 3, &[])).unwrap(), b"0.000");
    assert_eq!(read(numeric(1, 0xffff, 0, 6, &[12])).unwrap(), b"0.001200");
    assert_eq!(read(numeric(1, 0xfffe, 0, 8, &[1])).unwrap(), b"0.00000001");
    assert_eq!(read(numeric(1, 0, 0, 0, &[9999])).unwrap(), b"9999");
    assert_eq!(read(numeric(1, 32_767, 0, 0x3fff, &[1])).unwrap().len(), 131_069 + 1 + 16_383);
    assert!(read(numeric(1, 0, 0, 0, &[10_000])).is_err());
    assert!(read(numeric(2, 0, 0, 0, &[1])).is_err());
    assert!(read(numeric(1, 0, 0x1234, 0, &[1])).is_err());
    assert!(read(numeric(1, 0, 0, 0x4000, &[1])).is_err());
}

#[test]
fn a_time_in_any_zone_comes_out_in_utc() {
    for (value, expected) in [
        ("2024-01-02 03:04:05+00", "2024-01-02T03:04:05Z"),
        ("2024-01-02 03:04:05.12+00", "2024-01-02T03:04:05.12Z"),
        ("2024-01-02 03:04:05.12+05:30", "2024-01-01T21:34:05.12Z"),
        ("2023-12-31 20:00:00-05", "2024-01-01T01:00:00Z"),
        ("2024-02-28 23:00:00-01:00:01", "2024-02-29T00:00:01Z"),
        ("2024-01-02 03:04:05.100000+00:00", "2024-01-02T03:04:05.100000Z"),
        ("9999-12-31 23:30:00-01", "10000-01-01 00:30:00+00"),
        ("0001-01-01 00:30:00+01", "0001-12-31 23:30:00+00 BC"),
        ("10000-01-01 00:00:00+09", "10000-01-01 00:00:00+09"),
        ("0044-03-15 00:00:00+00 BC", "0044-03-15 00:00:00+00 BC"),
        ("infinity", "infinity"),
        ("-infinity", "-infinity"),
    ] {
        assert_eq!(text(oid::TIMESTAMPTZ, value), format!("\"{expected}\""));
    }
}

#[test]
fn bytea_in_escape_form_is_the_same_base64() {
    for (escaped, hex) in [
        (&b""[..], &b"\\x"[..]),
        (b"abc", b"\\x616263"),
        (b"a\\\\b\\000\\377\\012", b"\\x615c6200ff0a"),
        (b"''", b"\\x2727"),
    ] {
        assert_eq!(text(oid::BYTEA, escaped), text(oid::BYTEA, hex));
    }
    let long: Vec<u8> = (0..=255).cycle().take(2000).collect();
    let hex: String = long.iter().map(|byte| format!("{byte:02X}")).collect();
    let octal: String = long.iter().map(|byte| format!("\\{byte:03o}")).collect();
    let expected = binary(oid::BYTEA, &long);
    assert_eq!(text(oid::BYTEA, format!("\\x{hex}")), expected);
    assert_eq!(text(oid::BYTEA, octal), expected);
    assert!(expected.starts_with("\"AAECAwQFBgcICQ"));
}

#[test]
fn a_char_outside_of_ascii_is_escaped_as_later_servers_do() {
    assert_eq!(text(oid::CHAR, b"\xe9"), r#""\\351""#);
    assert_eq!(text(oid::CHAR, b"\\351"), r#""\\351""#);
    assert_eq!(binary(oid::CHAR, b"\xe9"), r#""\\351""#);
    assert_eq!(binary(oid::CHAR, b"\0"), r#""""#);
    assert_eq!(text(oid::CHAR, b""), r#""""#);
}

#[test]
fn bytes_that_are_not_utf8_are_replaced_and_nothing_is_lost() {
    assert_eq!(text(oid::TEXT, b"a\xe9\"b"), "\"a\u{fffd}\\\"b\"");
    assert_eq!(binary(oid::TEXT, b"a\xe9\"b"), "\"a\u{fffd}\\\"b\"");
    assert_eq!(text(70_000, b"\xff\xfe"), "\"\u{fffd}\u{fffd}\"");
    assert_eq!(text(1009, b"{a\xe9,\"\xe9\\\\\"}"), "[\"a\u{fffd}\",\"\u{fffd}\\\\\"]");
}

#[test]
fn an_element_without_its_form_is_a_string_of_its_own() {
    assert_eq!(text(1007, "{1,x,\"y\\\\\"}"), r#"[1,"x","y\\"]"#);
    assert_eq!(text(199, b"{\"\\\"\xff\\\"\"}"), "[\"\\\"\u{fffd}\\\"\"]");
    assert_eq!(text(1001, br#"{"\\\\000a\\\\\\\\","\\xzz"}"#), r#"["XDAwMGFcXA==","\\xzz"]"#);
    assert_eq!(text(1001, br#"{"\\000a"}"#), r#"["AGE="]"#);
}

#[test]
fn elements_of_a_type_that_is_not_builtin_are_strings() {
    let mut out = Vec::new();
    json_array_from_text(&mut out, 0, br#"{sad,NULL,"null","it's \"ok\""}"#, PLAIN).unwrap();
    assert_eq!(out, br#"["sad",null,"null","it's \"ok\""]"#);
    let error = json_array_from_text(&mut Vec::new(), 0, b"sad", PLAIN).unwrap_err();
    assert!(error.to_string().contains("\"sad\""), "{error}");
}

#[test]
fn a_binary_array_cannot_promise_more_than_it_holds() {
    let array = |dimensions: &[u32], element: u32, rest: &[u8]| {
        let count = u32::try_from(dimensions.len()).unwrap();
        let mut bytes: Vec<u8> = [count, 0, element].iter().flat_map(|n| n.to_be_bytes()).collect();
        for size in dimensions {
            bytes.extend([*size, 1].iter().flat_map(|n| n.to_be_bytes()));
        }
        bytes.extend(rest);
        let mut out = Vec::new();
        json_from_binary(&mut out, 1007, &bytes, PLAIN).map(|()| out).ok()
    };
    let two = [&[0, 0, 0, 4, 0, 0, 0, 7][..], &[255; 4]].concat();
    assert_eq!(array(&[2], 23, &two).unwrap(), b"[7,null]");
    assert_eq!(array(&[2, 1], 23, &two).unwrap(), b"[[7],[null]]");
    assert_eq!(array(&[1, 2], 23, &two).unwrap(), b"[[7,null]]");
    assert_eq!(array(&[], 23, b"").unwrap(), b"[]");
    assert_eq!(array(&[3], 23, &two), None);
    assert_eq!(array(&[1], 23, &two), None);
    assert_eq!(array(&[2], 20, &two), None);
    assert_eq!(array(&[0], 23, b""), None);
    assert_eq!(array(&[u32::MAX, u32::MAX, u32::MAX], 23, &two), None);
    assert_eq!(array(&[1, 1, 1, 1, 1, 1, 1], 23, &two), None);
}

#[test]
fn special_characters_are_found_at_every_place_of_a_word() {
    for special in [b'"', b'\\', b'\n', 0, 0x1f] {
        for place in 0..40 {
            let mut value = vec![b'a'; 40];
            value[place] = special;
            value[20] = if place == 20 { special } else { 0x7f };
            let json = text(oid::TEXT, &value);
            let read: String = serde_json::from_str(&json).unwrap();
            assert_eq!(read.as_bytes(), value);
        }
    }
}

/// Text and binary form of one value, each made by itself.
/// Eight bytes are looked at together, so every place and length counts.
#[test]
fn a_short_text_reads_back_with_any_byte_at_any_place() {
    for length in 1..=20 {
        for place in 0..length {
            for byte in 0..=255 {
                let mut value = vec![b'a'; length];
                value[place] = byte;
                let read: String = serde_json::from_str(&text(oid::TEXT, &value)).unwrap();
                assert_eq!(read, String::from_utf8_lossy(&value));
            }
        }
    }
}

#[test]
fn an_integer_is_refused_for_any_byte_at_any_place() {
    for length in 1..=20 {
        let digits = vec![b'7'; length];
        assert_eq!(text(oid::INT8, &digits).as_bytes(), digits);
        for place in 0..length {
            for byte in (0..=255).filter(|byte: &u8| !byte.is_ascii_digit()) {
                let mut odd = digits.clone();
                odd[place] = byte;
                let is_minus = place == 0 && byte == b'-' && length > 1;
                let mut out = Vec::new();
                let is_taken = json_from_text(&mut out, oid::INT8, &odd, PLAIN).is_ok();
                assert_eq!(is_taken, is_minus, "{odd:?}");
            }
        }
    }
}

#[test]
fn json_is_utf8_wherever_it_stops_being_ascii() {
    for length in [1, 2, 63, 64, 65, 130] {
        for place in 0..length {
            let mut value = vec![b'1'; length];
            value[place] = 0xff;
            refused(oid::JSONB, &value);
            if place + 2 <= length {
                value[place..place + 2].copy_from_slice("ü".as_bytes());
                assert_eq!(text(oid::JSONB, &value).as_bytes(), value);
            }
        }
    }
}

fn both() -> impl Strategy<Value = (u32, String, Vec<u8>)> {
    let micros = -211_813_488_000_000_000i64..9_223_371_331_200_000_000;
    prop_oneof![
        any::<i16>().prop_map(|n| (oid::INT2, n.to_string(), n.to_be_bytes().to_vec())),
        any::<i32>().prop_map(|n| (oid::INT4, n.to_string(), n.to_be_bytes().to_vec())),
        any::<i64>().prop_map(|n| (oid::INT8, n.to_string(), n.to_be_bytes().to_vec())),
        any::<u32>().prop_map(|n| (oid::OID, n.to_string(), n.to_be_bytes().to_vec())),
        any::<u64>().prop_map(|n| (oid::XID8, n.to_string(), n.to_be_bytes().to_vec())),
        any::<String>().prop_map(|s| (oid::TEXT, s.clone(), s.into_bytes())),
        any::<Vec<u8>>().prop_map(|bytes| {
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            (oid::BYTEA, format!("\\x{digits}"), bytes)
        }),
        any::<u128>().prop_map(|n| {
            let digits = format!("{n:032x}");
            let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]);
            (oid::UUID, parts.join("-"), n.to_be_bytes().to_vec())
        }),
        any::<u64>().prop_map(|n| {
            let halves = format!("{:X}/{:X}", n >> 32, n & 0xffff_ffff);
            (oid::PG_LSN, halves, n.to_be_bytes().to_vec())
        }),
        micros.prop_map(|us| (oid::TIMESTAMPTZ, iso(us), us.to_be_bytes().to_vec())),
        numeric(),
    ]
}

/// Day by day from 2000-01-01, by the rule of leap years alone.
fn iso(us: i64) -> String {
    const DAY: i64 = 86_400_000_000;
    let (mut day, us) = (us.div_euclid(DAY), us.rem_euclid(DAY));
    // 400 years have the same number of days wherever they begin.
    let mut year = 2000 + day.div_euclid(146_097) * 400;
    day = day.rem_euclid(146_097);
    let leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let length = |year: i64| if leap(year) { 366 } else { 365 };
    while day >= length(year) {
        day -= length(year);
        year += 1;
    }
    let february = if leap(year) { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    let seconds = us / 1_000_000;
    let fraction = format!(".{:06}", us % 1_000_000);
    let fraction = fraction.trim_end_matches('0').trim_end_matches('.');
    let (shown, era) = if year > 0 { (year, "") } else { (1 - year, " BC") };
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!(
        "{shown:04}-{month:02}-{:02} {hours:02}:{minutes:02}:{seconds:02}{fraction}+00{era}",
        day + 1
    )
}

fn numeric() -> impl Strategy<Value = (u32, String, Vec<u8>)> {
    ("(0|[1-9][0-9]{0,40})", "[0-9]{0,40}", any::<bool>()).prop_map(|(whole, behind, negative)| {
        let zero = whole == "0" && behind.bytes().all(|digit| digit == b'0');
        let sign = if negative && !zero { "-" } else { "" };
        let point = if behind.is_empty() { "" } else { "." };
        let shown = format!("{sign}{whole}{point}{behind}");
        let padded = format!("{}{whole}", "0".repeat((4 - whole.len() % 4) % 4));
        let tail = format!("{behind}{}", "0".repeat((4 - behind.len() % 4) % 4));
        let group = |chunk: &[u8]| std::str::from_utf8(chunk).unwrap().parse::<u16>().unwrap();
        let mut groups: Vec<u16> = padded.as_bytes().chunks(4).map(group).collect();
        let mut weight = i16::try_from(groups.len()).unwrap() - 1;
        groups.extend(tail.as_bytes().chunks(4).map(group));
        while groups.last() == Some(&0) {
            groups.pop();
        }
        while groups.first() == Some(&0) {
            groups.remove(0);
            weight -= 1;
        }
        let head = [
            u16::try_from(groups.len()).unwrap(),
            weight.cast_unsigned(),
            if sign.is_empty() { 0 } else { 0x4000 },
            u16::try_from(behind.len()).unwrap(),
        ];
        let bytes = head.iter().chain(&groups).flat_map(|part| part.to_be_bytes()).collect();
        (oid::NUMERIC, shown, bytes)
    })
}

proptest! {
    #[test]
    fn text_and_binary_of_a_value_are_the_same_json((type_oid, shown, bytes) in both()) {
        let json = text(type_oid, &shown);
        prop_assert_eq!(&binary(type_oid, bytes), &json);
        prop_assert!(serde_json::from_str::<serde::de::IgnoredAny>(&json).is_ok(), "{}", json);
        if let oid::INT2 | oid::INT4 | oid::INT8 | oid::OID | oid::XID8 | oid::NUMERIC = type_oid {
            prop_assert_eq!(json, shown);
        }
    }

    #[test]
    fn arrays_of_it_are_too(values in prop::collection::vec(both(), 1..8)) {
        let type_oid = values[0].0;
        let values: Vec<_> = values.into_iter().filter(|value| value.0 == type_oid).collect();
        let array = (1..6000).find(|array| oid::element_of(*array) == Some(type_oid)).unwrap();
        let quoted = values.iter().map(|(_, shown, _)| {
            format!("\"{}\"", shown.replace('\\', "\\\\").replace('"', "\\\""))
        });
        let shown = format!("{{{},NULL}}", quoted.collect::<Vec<_>>().join(","));
        let size = u32::try_from(values.len() + 1).unwrap();
        let mut bytes: Vec<u8> =
            [1, 1, type_oid, size, 1].iter().flat_map(|n| n.to_be_bytes()).collect();
        for (_, _, value) in &values {
            bytes.extend(u32::try_from(value.len()).unwrap().to_be_bytes());
            bytes.extend(value);
        }
        bytes.extend([255; 4]);
        let expected: Vec<String> =
            values.iter().map(|(_, shown, _)| text(type_oid, shown)).collect();
        let json = text(array, &shown);
        prop_assert_eq!(&json, &format!("[{},null]", expected.join(",")));
        prop_assert_eq!(binary(array, bytes), json);
    }

    #[test]
    fn a_double_reads_back_to_the_same_bits(bits in any::<u64>()) {
        let value = f64::from_bits(bits);
        let json = binary(oid::FLOAT8, bits.to_be_bytes());
        if value.is_finite() {
            prop_assert_eq!(json.parse::<f64>().unwrap().to_bits(), bits, "{}", json);
            prop_assert!(serde_json::from_str::<serde::de::IgnoredAny>(&json).is_ok());
            prop_assert_eq!(text(oid::FLOAT8, &json), json);
        } else {
            prop_assert!(["\"NaN\"", "\"Infinity\"", "\"-Infinity\""].contains(&json.as_str()));
        }
    }

    #[test]
    fn a_single_reads_back_to_the_same_bits(bits in any::<u32>()) {
        let value = f32::from_bits(bits);
        let json = binary(oid::FLOAT4, bits.to_be_bytes());
        if value.is_finite() {
            prop_assert_eq!(json.parse::<f32>().unwrap().to_bits(), bits, "{}", json);
            prop_assert_eq!(text(oid::FLOAT4, &json), json);
        }
    }

    #[test]
    fn large_round_doubles_leave_the_middle(digits in 1u64..99_999, power in 17u32..30) {
        let value: f64 = format!("{digits}e{power}").parse().unwrap();
        let json = binary(oid::FLOAT8, value.to_be_bytes());
        prop_assert_eq!(json.parse::<f64>().unwrap(), value, "{}", json);
        let even = value.to_bits() & 1 == 0;
        let shortest = format!("{value:e}");
        // The standard library's digits, except where they lie in the middle: then one more.
        let same = json.replace("e+", "e") == shortest;
        prop_assert!(same || even && json.len() > shortest.len(), "{} {}", json, shortest);
    }
}
