//! Tokens by table, signed with generated keys. `tests/ssh` tests that `ssh-keygen -Y sign` makes
//! the same.

use russh::keys::PrivateKey;
use russh::keys::signature::Signer as _;
use russh::keys::ssh_key::Signature;
use russh::keys::ssh_key::encoding::Encode as _;
use russh::keys::ssh_key::public::{KeyData, SkEd25519};

use super::*;

const NOW: i64 = 1_767_225_600;

fn rules() -> TokenRules {
    TokenRules {
        host: "api.example.org".into(),
        longest: Duration::from_secs(86_400),
    }
}

fn now() -> Timestamp {
    Timestamp::from_second(NOW).unwrap()
}

fn key() -> PrivateKey {
    PrivateKey::random(&mut rand::rng(), Algorithm::Ed25519).unwrap()
}

fn signed(key: &PrivateKey, namespace: &str, claims: &str) -> SshSig {
    key.sign(namespace, HashAlg::Sha512, claims.as_bytes()).unwrap()
}

fn written(claims: &str, signature: &SshSig) -> String {
    let mut bytes = Vec::new();
    signature.encode(&mut bytes).unwrap();
    format!("{PREFIX}{}.{}", STANDARD.encode(claims), STANDARD.encode(bytes))
}

fn judged(text: &str) -> Result<Permit, &'static str> {
    let judged = Token::parse(text).and_then(|token| token.verify(&rules(), "acme", now()));
    judged.map_err(|error| error.as_str())
}

#[test]
fn claims_are_believed_within_reason() {
    let key = key();
    for (rule, claims, expected) in [
        (
            "an hour",
            format!(r#"{{"tenant":"acme","commands":["clusters"],"exp":{}}}"#, NOW + 3600),
            Ok(()),
        ),
        (
            "a day",
            format!(r#"{{"tenant":"acme","commands":["clusters"],"exp":{}}}"#, NOW + 86_400),
            Ok(()),
        ),
        (
            "more than a day",
            format!(r#"{{"tenant":"acme","commands":["clusters"],"exp":{}}}"#, NOW + 86_401),
            Err("lasting"),
        ),
        (
            "for ever",
            format!(r#"{{"tenant":"acme","commands":["clusters"],"exp":{}}}"#, i64::MAX),
            Err("lasting"),
        ),
        (
            "over",
            format!(r#"{{"tenant":"acme","commands":["clusters"],"exp":{NOW}}}"#),
            Err("expired"),
        ),
        (
            "long over",
            format!(r#"{{"tenant":"acme","commands":["clusters"],"exp":{}}}"#, i64::MIN),
            Err("expired"),
        ),
        (
            "of another Tenant",
            format!(r#"{{"tenant":"other","commands":["clusters"],"exp":{}}}"#, NOW + 1),
            Err("tenant"),
        ),
        (
            "of no Tenant",
            format!(r#"{{"commands":["clusters"],"exp":{}}}"#, NOW + 1),
            Err("claims"),
        ),
        (
            "without an end",
            r#"{"tenant":"acme","commands":["clusters"]}"#.into(),
            Err("claims"),
        ),
        (
            "without commands",
            format!(r#"{{"tenant":"acme","exp":{}}}"#, NOW + 1),
            Err("claims"),
        ),
        (
            "no command",
            format!(r#"{{"tenant":"acme","commands":["rm"],"exp":{}}}"#, NOW + 1),
            Err("claims"),
        ),
        (
            "all commands",
            format!(r#"{{"tenant":"acme","commands":["*"],"exp":{}}}"#, NOW + 1),
            Err("claims"),
        ),
        (
            "a limit that is not known here",
            format!(
                r#"{{"tenant":"acme","commands":["clusters"],"clusters":["a"],"exp":{}}}"#,
                NOW + 1
            ),
            Err("claims"),
        ),
        (
            "a half number",
            r#"{"tenant":"acme","commands":["clusters"],"exp":1.5}"#.into(),
            Err("claims"),
        ),
        ("no JSON", "commands".into(), Err("claims")),
        ("nothing", String::new(), Err("claims")),
    ] {
        let token = written(&claims, &signed(&key, "yoke@api.example.org", &claims));
        assert_eq!(judged(&token).map(|_| ()), expected, "{rule}: {claims}");
    }
    let claims = format!(
        r#"{{"tenant":"acme","commands":["clusters","sleep"],"exp":{}}}"#,
        NOW + 60
    );
    let permit = judged(&written(&claims, &signed(&key, "yoke@api.example.org", &claims))).unwrap();
    for (command, expected) in [("clusters", true), ("sleep", true), ("delete", false), ("", false)] {
        assert_eq!(permit.allows(command), expected, "{command}");
    }
    assert_eq!(permit.id().expires, NOW + 60);
}

#[test]
fn a_digest_is_what_sha256sum_prints() {
    assert_eq!(digest(b""), "e3b0c44298fc1c14");
    assert_eq!(digest(b"abc"), "ba7816bf8f01cfea");
}

#[test]
fn only_what_is_signed_for_this_host_is_believed() {
    let (key, other) = (key(), key());
    let claims = format!(r#"{{"tenant":"acme","commands":["clusters"],"exp":{}}}"#, NOW + 60);
    let good = signed(&key, "yoke@api.example.org", &claims);
    let token = written(&claims, &good);
    assert!(judged(&token).is_ok());
    let printed = Token::parse(&token).unwrap().fingerprint();
    assert_eq!(printed, fingerprint(key.public_key()));
    let more = claims.replace("clusters", "delete");
    let foreign = SshSig::new(
        other.public_key().key_data().clone(),
        "yoke@api.example.org",
        HashAlg::Sha512,
        good.signature().clone(),
    )
    .unwrap();
    let (body, signature) = token.strip_prefix(PREFIX).unwrap().split_once('.').unwrap();
    let raw = STANDARD.decode(signature).unwrap();
    let again = |bytes: &[u8]| format!("{PREFIX}{body}.{}", STANDARD.encode(bytes));
    let mut older = raw.clone();
    older[9] = 0;
    for (rule, token, expected) in [
        ("for git", written(&claims, &signed(&key, "git", &claims)), "namespace"),
        (
            "for another host",
            written(&claims, &signed(&key, "yoke@other.example.org", &claims)),
            "namespace",
        ),
        (
            "for a longer name",
            written(&claims, &signed(&key, "yoke@api.example.org.evil.org", &claims)),
            "namespace",
        ),
        ("other claims", written(&more, &good), "signature"),
        ("another's key beside it", written(&claims, &foreign), "signature"),
        ("of a version before the first", again(&older), "unreadable"),
        ("more behind it", again(&[&raw[..], b"x"].concat()), "unreadable"),
        ("cut", again(&raw[..raw.len() - 1]), "unreadable"),
        ("empty", again(&[]), "unreadable"),
        ("no signature", format!("{PREFIX}{body}"), "unreadable"),
        ("a third part", format!("{token}.x"), "unreadable"),
        ("another form", token.replace(PREFIX, "yoke-api2."), "unreadable"),
        ("base64 with a break", token.replace('.', ".\n"), "unreadable"),
        ("nothing", String::new(), "unreadable"),
        (
            "too long",
            format!("{PREFIX}{}.{signature}", "A".repeat(8192)),
            "unreadable",
        ),
    ] {
        assert_eq!(judged(&token), Err(expected), "{rule}: {token}");
    }
    // A change of any byte of the signature makes it invalid, and none causes a panic.
    for at in 0..raw.len() {
        let mut changed = raw.clone();
        changed[at] ^= 1;
        assert!(judged(&again(&changed)).is_err(), "byte {at}");
        assert!(judged(&again(&raw[..at])).is_err(), "cut at {at}");
    }
}

#[test]
fn wrong_length_allocates_nothing() {
    for length in [u32::MAX, 1 << 31, 1 << 20] {
        let bytes = [&b"SSHSIG\0\0\0\x01"[..], &length.to_be_bytes(), &[0; 64]].concat();
        let token = format!("{PREFIX}e30=.{}", STANDARD.encode(bytes));
        assert_eq!(judged(&token), Err("unreadable"), "{length}");
    }
}

/// Signs as a security key with these flags would.
fn signed_by_security_key(key: &PrivateKey, flags: u8, claims: &str) -> SshSig {
    let KeyData::Ed25519(public) = key.public_key().key_data() else {
        panic!("another kind of key");
    };
    let namespace = rules().namespace();
    let message = SshSig::signed_data(&namespace, HashAlg::Sha512, claims.as_bytes()).unwrap();
    let (hash, trailer) = (|bytes: &[u8]| HashAlg::Sha256.digest(bytes), [flags, 0, 0, 0, 7]);
    let data = [hash(b"ssh:").as_slice(), &trailer, hash(&message).as_slice()].concat();
    let signature = key.try_sign(&data).unwrap();
    let data = [signature.as_bytes(), &trailer].concat();
    let signature = Signature::new(Algorithm::SkEd25519, data).unwrap();
    let public = KeyData::SkEd25519(SkEd25519::new(*public, "ssh:"));
    SshSig::new(public, namespace, HashAlg::Sha512, signature).unwrap()
}

#[test]
fn a_security_key_must_say_that_it_was_touched() {
    let key = key();
    let claims = format!(r#"{{"tenant":"acme","commands":["clusters"],"exp":{}}}"#, NOW + 60);
    for (flags, expected) in [(1, Ok(())), (5, Ok(())), (0, Err("signature")), (4, Err("signature"))] {
        let token = written(&claims, &signed_by_security_key(&key, flags, &claims));
        assert_eq!(judged(&token).map(|_| ()), expected, "{flags}");
    }
}
