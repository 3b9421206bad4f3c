//! Converts Kubernetes quantities to bytes and to millicores. Pure.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

const SUFFIXES: [(&str, i128); 12] = [
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("Pi", 1 << 50),
    ("Ei", 1 << 60),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("P", 1_000_000_000_000_000),
    ("E", 1_000_000_000_000_000_000),
];

/// The quantity is not a number of bytes.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a number of bytes, such as 256Mi")]
pub struct QuantityError(String);

/// The number of bytes, at least 1, rounded up.
pub fn to_bytes(quantity: &Quantity) -> Result<i64, QuantityError> {
    let wrong = || QuantityError(quantity.0.clone());
    let text = quantity.0.as_str();
    let (number, factor) = SUFFIXES
        .iter()
        .find_map(|(suffix, factor)| text.strip_suffix(suffix).map(|number| (number, *factor)))
        .unwrap_or((text, 1));
    let (integer, part) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit()) && text.len() <= 18;
    if !digits(integer) || !digits(part) || (integer.is_empty() && part.is_empty()) {
        return Err(wrong());
    }
    let scale = 10_i128.pow(u32::try_from(part.len()).map_err(|_| wrong())?);
    let value: i128 = format!("{integer}{part}").parse().map_err(|_| wrong())?;
    let bytes = value.checked_mul(factor).ok_or_else(wrong)?;
    let bytes = bytes.checked_add(scale - 1).ok_or_else(wrong)? / scale;
    i64::try_from(bytes).ok().filter(|bytes| *bytes > 0).ok_or_else(wrong)
}

/// The number of millicores in the forms that a kubelet reports as allocatable: `4`, `3920m`.
/// `None` for another form.
pub fn to_millicores(quantity: &Quantity) -> Option<usize> {
    match quantity.0.strip_suffix('m') {
        Some(thousandths) => thousandths.parse().ok(),
        None => quantity.0.parse::<usize>().ok()?.checked_mul(1000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_thousandths_of_cores() {
        for (text, expected) in [
            ("2", Some(2000)),
            ("3920m", Some(3920)),
            ("-1", None),
            ("1.5", None),
            ("18446744073709551615", None),
            ("170141183460469231.731687303715884105k", None),
            ("", None),
        ] {
            assert_eq!(to_millicores(&Quantity(text.into())), expected, "{text}");
        }
    }

    #[test]
    fn quantities_are_bytes() {
        for (text, expected) in [
            ("256Mi", Some(268_435_456)),
            ("1.5Gi", Some(1_610_612_736)),
            ("8G", Some(8_000_000_000)),
            ("1000", Some(1000)),
            ("0.1", Some(1)),
            ("0", None),
            ("-1", None),
            ("100m", None),
            ("1e3", None),
            ("", None),
            ("Mi", None),
            (".", None),
            ("8Ei", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(to_bytes(&Quantity(text.into())).ok(), expected, "{text:?}");
        }
    }
}
