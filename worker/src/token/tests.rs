use serde_json::{Value, json};

use super::*;

const PEM: &str = "-----BEGIN CERTIFICATE-----\nMAAA\n-----END CERTIFICATE-----\n";

fn fields() -> Value {
    json!({
        "server": "demo-abcdefgh.yoke.example:443",
        "ca": PEM,
        "clientCa": PEM,
        "token": "abcdef.0123456789abcdef",
        "version": "v1.35.4",
    })
}

fn word(json: &str) -> String {
    format!("yoke1.{}", BASE64URL_NOPAD.encode(json.as_bytes()))
}

#[test]
fn a_word_is_read_with_what_a_clipboard_adds() {
    let line = JoinLine::parse(&format!("  {}\n", word(&fields().to_string()))).unwrap();
    assert_eq!(line.server, "demo-abcdefgh.yoke.example:443");
    assert_eq!(line.token, "abcdef.0123456789abcdef");
    let shown = format!("{line:?}");
    assert!(
        shown.contains("demo-abcdefgh") && !shown.contains("0123456789abcdef"),
        "{shown}"
    );
}

#[test]
fn anything_else_is_refused() {
    let good = word(&fields().to_string());
    let mut more = fields();
    more["x"] = 1.into();
    let mut less = fields();
    less.as_object_mut().unwrap().remove("clientCa");
    for (rule, word, expected) in [
        ("nothing", String::new(), LineError::Prefix),
        ("kubeadm's token", "abcdef.0123456789abcdef".into(), LineError::Prefix),
        ("another form", good.replace("yoke1.", "yoke2."), LineError::Prefix),
        ("half of it", good[..good.len() / 2].into(), LineError::Encoding),
        ("padded", format!("{good}="), LineError::Encoding),
        ("no JSON", word("x"), LineError::Encoding),
        ("no object", word("[]"), LineError::Encoding),
        ("deep JSON", word(&"[".repeat(40_000)), LineError::Encoding),
        ("a field too many", word(&more.to_string()), LineError::Encoding),
        ("a field too few", word(&less.to_string()), LineError::Encoding),
        ("endless", format!("yoke1.{}", "A".repeat(WORD_MAX)), LineError::Long),
        ("not ASCII", "yoke1.\u{e4}".into(), LineError::Encoding),
    ] {
        assert_eq!(JoinLine::parse(&word).unwrap_err(), expected, "{rule}");
    }
}

#[test]
fn every_part_is_checked() {
    let many = PEM.repeat(AUTHORITIES_MAX + 1);
    let key = "-----BEGIN PRIVATE KEY-----\nMAAA\n-----END PRIVATE KEY-----\n";
    let with_key = format!("{PEM}{key}");
    for (field, part, value) in [
        ("server", "server", "https://a.example:443"),
        ("server", "server", "a.example"),
        ("server", "server", "a.example:0"),
        ("server", "server", "a.example:+443"),
        ("server", "server", "a.example:443/path"),
        ("server", "server", "user@a.example:443"),
        ("server", "server", "10.0.0.1:443"),
        ("ca", "CA", ""),
        ("ca", "CA", key),
        ("ca", "CA", &with_key),
        ("ca", "CA", &many),
        (
            "clientCa",
            "CA of clients",
            "-----BEGIN CERTIFICATE-----\n?\n-----END CERTIFICATE-----\n",
        ),
        ("token", "bootstrap token", "abcdef"),
        ("token", "bootstrap token", "abcdef.0123456789abcde"),
        ("token", "bootstrap token", "ABCDEF.0123456789abcdef"),
        ("token", "bootstrap token", "abcdef.0123456789abcdef\n"),
        ("version", "version", "latest"),
    ] {
        let mut fields = fields();
        fields[field] = value.into();
        let refused = JoinLine::parse(&word(&fields.to_string())).unwrap_err();
        assert_eq!(refused, LineError::Part(part), "{value:?}");
    }
}
