// SPDX-License-Identifier: GPL-2.0-or-later
//! Bytes in JSON: a string where they are UTF-8, else `{"base64": ...}`.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Wire {
    Text(String),
    Binary { base64: String },
}

pub(super) fn serialize<S: Serializer>(data: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    match std::str::from_utf8(data) {
        Ok(text) => serializer.serialize_str(text),
        Err(_) => Wire::Binary { base64: encode(data) }.serialize(serializer),
    }
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    match Wire::deserialize(deserializer)? {
        Wire::Text(text) => Ok(text.into_bytes()),
        Wire::Binary { base64 } => decode(&base64).ok_or_else(|| D::Error::custom("bad base64")),
    }
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn encode(data: &[u8]) -> String {
    let mut out = String::with_capacity(data.len().div_ceil(3) * 4);
    for chunk in data.chunks(3) {
        let word =
            chunk.iter().fold(0u32, |w, &b| w << 8 | u32::from(b)) << (8 * (3 - chunk.len()));
        for i in 0..4 {
            let digit = (word >> (18 - 6 * i)) & 63;
            out.push(if i > chunk.len() { '=' } else { ALPHABET[digit as usize] as char });
        }
    }
    out
}

fn decode(text: &str) -> Option<Vec<u8>> {
    let text = text.as_bytes();
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    for (i, quad) in text.chunks(4).enumerate() {
        let last = (i + 1) * 4 == text.len();
        let padding = quad.iter().rev().take_while(|&&c| c == b'=').count();
        if padding > if last { 2 } else { 0 } {
            return None;
        }
        let mut word = 0u32;
        for &c in &quad[..4 - padding] {
            word = word << 6 | ALPHABET.iter().position(|&a| a == c)? as u32;
        }
        word <<= 6 * padding;
        out.extend_from_slice(&word.to_be_bytes()[1..4 - padding]);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_the_vectors_of_rfc_4648() {
        for (plain, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode(plain.as_bytes()), coded);
            assert_eq!(decode(coded).unwrap(), plain.as_bytes());
        }
        for bad in ["Zg=", "Z===", "Zg==Zg==", "Z!==", "===="] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }
}
