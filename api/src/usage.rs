//! How long a Cluster has run, and what that costs. Pure.

use std::fmt;
use std::str::FromStr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Fractions of a currency unit in which amounts are counted.
const MICROS_PER_UNIT: u64 = 1_000_000;
const MAX_DECIMALS: usize = 6;
const SECONDS_PER_HOUR: u64 = 3600;

/// Time for which a Cluster has run since its creation, and its price per hour.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UsageStatus {
    /// Time for which the Cluster was requested to run, in seconds, summed over periods that have
    /// ended. The period since `awakeSince` is not included.
    #[serde(default)]
    pub awake_seconds: i64,
    /// Start of the period for which the Cluster is now requested to run. Absent while the Cluster
    /// sleeps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub awake_since: Option<Time>,
    /// Price of one hour awake, such as `0.02 EUR`, if the host's owner has set one. It applies to
    /// all hours, including past ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price_per_hour: Option<String>,
}

impl UsageStatus {
    /// Seconds awake up to `now`.
    pub fn awake(&self, now: Timestamp) -> u64 {
        let since = self
            .awake_since
            .as_ref()
            .map_or(0, |since| now.duration_since(since.0).as_secs());
        let ended = u64::try_from(self.awake_seconds).unwrap_or_default();
        ended.saturating_add(u64::try_from(since).unwrap_or_default())
    }

    /// Cost up to `now`, if a price is set.
    pub fn cost(&self, now: Timestamp) -> Option<Money> {
        let price: Money = self.price_per_hour.as_deref()?.parse().ok()?;
        let micros = u128::from(price.micros) * u128::from(self.awake(now)) / u128::from(SECONDS_PER_HOUR);
        Some(Money {
            micros: u64::try_from(micros).unwrap_or(u64::MAX),
            ..price
        })
    }
}

/// An amount of money. Displayed with two decimals, rounded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Money {
    micros: u64,
    currency: String,
}

impl fmt::Display for Money {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hundredths = self.micros.saturating_add(MICROS_PER_UNIT / 200) / (MICROS_PER_UNIT / 100);
        write!(
            formatter,
            "{}.{:02} {}",
            hundredths / 100,
            hundredths % 100,
            self.currency
        )
    }
}

/// The text is not an amount of money.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected an amount with up to 6 decimals and a currency of three letters, such as `0.02 EUR`")]
pub struct MoneyError;

impl FromStr for Money {
    type Err = MoneyError;

    fn from_str(text: &str) -> Result<Self, MoneyError> {
        let (amount, currency) = text.split_once(' ').ok_or(MoneyError)?;
        let (whole, part) = amount.split_once('.').unwrap_or((amount, "0"));
        let is_number = |digits: &str, most| {
            (1..=most).contains(&digits.len()) && digits.bytes().all(|digit| digit.is_ascii_digit())
        };
        let is_currency = currency.len() == 3 && currency.bytes().all(|letter| letter.is_ascii_uppercase());
        if !is_currency || !is_number(whole, 9) || !is_number(part, MAX_DECIMALS) {
            return Err(MoneyError);
        }
        let number = |digits: &str| digits.parse::<u64>().map_err(|_| MoneyError);
        Ok(Self {
            micros: number(whole)? * MICROS_PER_UNIT + number(&format!("{part:0<MAX_DECIMALS$}"))?,
            currency: currency.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn hours_awake_cost_their_price() {
        let usage = |seconds, since: Option<i64>, price: &str| UsageStatus {
            awake_seconds: seconds,
            awake_since: since.map(|since| Time(at(since))),
            price_per_hour: Some(price.to_owned()),
        };
        for (usage, awake, cost) in [
            (usage(3600, None, "0.02 EUR"), 3600, "0.02 EUR"),
            (usage(3600, Some(6400), "0.02 EUR"), 7200, "0.04 EUR"),
            // The clock was set back.
            (usage(5, Some(20_000), "0.02 EUR"), 5, "0.00 EUR"),
            (usage(-5, None, "1 USD"), 0, "0.00 USD"),
            (usage(900, None, "0.0198 EUR"), 900, "0.00 EUR"),
            (usage(900, None, "0.02 EUR"), 900, "0.01 EUR"),
            (usage(36_000, None, "123456789.123456 JPY"), 36_000, "1234567891.23 JPY"),
            (
                usage(i64::MAX, Some(0), "999999999 USD"),
                i64::MAX as u64 + 10_000,
                "18446744073709.55 USD",
            ),
        ] {
            assert_eq!(usage.awake(at(10_000)), awake, "{usage:?}");
            assert_eq!(usage.cost(at(10_000)).unwrap().to_string(), cost, "{usage:?}");
        }
        assert_eq!(UsageStatus::default().cost(at(0)), None);
    }

    #[test]
    fn malformed_amounts_are_refused() {
        for text in [
            "",
            "1",
            "1 ",
            " EUR",
            "1 eur",
            "1 EURO",
            "1  EUR",
            "-1 EUR",
            "+1 EUR",
            "1. EUR",
            ".5 EUR",
            "1.2.3 EUR",
            "1e3 EUR",
            "0.0000001 EUR",
            "1234567890 EUR",
            "1 EUR ",
            "\u{661} EUR",
        ] {
            assert_eq!(text.parse::<Money>(), Err(MoneyError), "{text:?}");
        }
    }
}
