use std::sync::OnceLock;

use aws_lc_rs::hmac;
use aws_lc_rs::rsa::KeySize;
use serde_json::{Value, json};

use super::*;
use crate::test_util::fixtures::{Signer, claims, to_part};

const NOW: i64 = 1_800_000_000;
const A: &str = "https://a-bcdfghjk.yoke.test";
const B: &str = "https://b-zzzzzzzz.yoke.test";
const COMMON: &str = "https://kubernetes.default.svc";

struct Keys {
    a: Signer,
    /// A signer with the other type of key.
    b: Signer,
    stranger: Signer,
}

fn keys() -> &'static Keys {
    static KEYS: OnceLock<Keys> = OnceLock::new();
    KEYS.get_or_init(|| Keys {
        a: Signer::rsa(KeySize::Rsa2048),
        b: Signer::p256(),
        stranger: Signer::rsa(KeySize::Rsa2048),
    })
}

fn trust(issuer: &str, keys: &[&Signer]) -> TokenTrust {
    TokenTrust {
        issuer: issuer.into(),
        audiences: [issuer.to_owned(), COMMON.to_owned()].into(),
        keys: keys.iter().map(|key| TokenKey::from_pem(&key.pem).unwrap()).collect(),
    }
}

/// The cluster that the token belongs to, A or B.
fn owner(token: &str) -> Result<String, TokenError> {
    let clusters = [trust(A, &[&keys().a]), trust(B, &[&keys().b])];
    owner_among(token, &clusters)
}

fn owner_among(token: &str, clusters: &[TokenTrust]) -> Result<String, TokenError> {
    let find = |issuer: &str| clusters.iter().find(|trust| trust.issuer == issuer);
    let now = Timestamp::from_second(NOW).unwrap();
    verify(token, now, find, |trust| *trust).map(|verified| verified.cluster.issuer.clone())
}

fn of_a() -> Value {
    claims(A, &[A, COMMON], NOW)
}

fn with(key: &str, value: Value) -> Value {
    let mut claims = of_a();
    claims[key] = value;
    claims
}

fn without(key: &str) -> Value {
    let mut claims = of_a();
    claims.as_object_mut().unwrap().remove(key);
    claims
}

/// A token signed by A with another header.
fn headed(header: &Value) -> String {
    keys().a.sign(&header.to_string(), &of_a().to_string())
}

#[test]
fn a_token_belongs_to_the_cluster_that_signed_it() {
    let (a, b) = (&keys().a, &keys().b);
    for (rule, token, expected) in [
        ("RSA", a.token(&of_a()), A),
        ("P-256", b.token(&claims(B, &[B], NOW)), B),
        ("the common audience", a.token(&claims(A, &[COMMON], NOW)), A),
        ("one of many audiences", a.token(&claims(A, &["vault", A], NOW)), A),
        ("for two clusters: its own", a.token(&claims(A, &[B, A], NOW)), A),
        ("an audience that is a text", a.token(&with("aud", json!(A))), A),
        ("no key is named", headed(&json!({"alg": "RS256"})), A),
        ("a type is named", headed(&json!({"alg": "RS256", "typ": "JWT"})), A),
        ("expired within the leeway", a.token(&with("exp", json!(NOW - 59))), A),
        ("early within the leeway", a.token(&with("nbf", json!(NOW + 60))), A),
        (
            "without nbf and iat",
            a.token(&json!({"iss": A, "aud": [A], "exp": NOW + 1})),
            A,
        ),
    ] {
        assert_eq!(owner(&token), Ok(expected.to_owned()), "{rule}");
    }
}

#[test]
fn attacks_are_refused() {
    use TokenError::{Algorithm, Audience, Critical, Early, Expired, Issuer, Key, Malformed, Signature, TooLong};
    let Keys { a, b, stranger } = keys();
    let good = a.token(&of_a());
    let [header, payload, signature] = good.split('.').collect::<Vec<_>>()[..] else {
        panic!("a token has three parts");
    };
    let none = |name: &str| format!("{}.{payload}.", to_part(&json!({"alg": name}).to_string()));
    let hmac = |name: &str, secret: &[u8]| {
        let signed = format!("{}.{payload}", to_part(&json!({"alg": name, "kid": a.id}).to_string()));
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let tag = hmac::sign(&key, signed.as_bytes());
        format!("{signed}.{}", BASE64URL_NOPAD.encode(tag.as_ref()))
    };
    let der = pem::parse(&a.pem).unwrap().into_contents();
    let of_b = claims(B, &[B, COMMON], NOW);
    let mut flipped = BASE64URL_NOPAD.decode(signature.as_bytes()).unwrap();
    flipped[0] ^= 1;
    let cut = BASE64URL_NOPAD.encode(&flipped[..flipped.len() - 1]);
    let flipped = BASE64URL_NOPAD.encode(&flipped);
    let twice = |key: &str, first: &str, second: &str| {
        let fields = format!(r#""iss":"{A}","exp":{}"#, NOW + 60);
        let claims = format!(r#"{{{fields},"{key}":{first},"{key}":{second}}}"#);
        a.sign(&a.header().to_string(), &claims)
    };
    let named = |id: &str| headed(&json!({"alg": "RS256", "kid": id}));
    let other_payload = to_part(&of_b.to_string());
    let deep = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
    for (rule, token, expected) in [
        // Form
        ("empty", String::new(), Malformed),
        ("garbage", "garbage".into(), Malformed),
        ("two parts", format!("{header}.{payload}"), Malformed),
        ("four parts", format!("{good}.{signature}"), Malformed),
        ("five parts, as of encryption", format!("{good}.e.e"), Malformed),
        ("padding", format!("{good}="), Malformed),
        ("a space", format!("{header}.{payload} .{signature}"), Malformed),
        ("two tokens", format!("{good},Bearer {good}"), Malformed),
        (
            "the other alphabet of base64",
            format!("{header}.{payload}.+/{signature}"),
            Malformed,
        ),
        (
            "a header that is a list",
            format!("{}.{payload}.{signature}", to_part("[]")),
            Malformed,
        ),
        (
            "no algorithm",
            format!("{}.{payload}.{signature}", to_part("{}")),
            Malformed,
        ),
        ("too long", format!("{good}{}", "a".repeat(8192)), TooLong),
        (
            "nested deep",
            format!("{}.{}.x", header, to_part(&deep[..2000])),
            Malformed,
        ),
        // Algorithm
        ("alg none", none("none"), Algorithm),
        ("alg None", none("None"), Algorithm),
        ("alg NONE", none("NONE"), Algorithm),
        ("alg empty", none(""), Algorithm),
        (
            "none with the signature of another",
            headed(&json!({"alg": "none"})),
            Algorithm,
        ),
        (
            "HS256 with the public key's PEM",
            hmac("HS256", a.pem.as_bytes()),
            Algorithm,
        ),
        ("HS256 with the public key's DER", hmac("HS256", &der), Algorithm),
        ("HS256 with nothing", hmac("HS256", b""), Algorithm),
        (
            "an HMAC that calls itself RS256",
            hmac("RS256", a.pem.as_bytes()),
            Signature,
        ),
        ("alg rs256", headed(&json!({"alg": "rs256", "kid": a.id})), Algorithm),
        ("alg RS512", headed(&json!({"alg": "RS512", "kid": a.id})), Algorithm),
        ("alg PS256", headed(&json!({"alg": "PS256", "kid": a.id})), Algorithm),
        ("alg EdDSA", headed(&json!({"alg": "EdDSA", "kid": a.id})), Algorithm),
        (
            "alg ES256 with an RSA key",
            headed(&json!({"alg": "ES256", "kid": a.id})),
            Key,
        ),
        ("alg ES256, any key", headed(&json!({"alg": "ES256"})), Key),
        (
            "alg RS256 with a P-256 key",
            b.sign(r#"{"alg":"RS256"}"#, &of_b.to_string()),
            Key,
        ),
        (
            "alg twice",
            a.sign(r#"{"alg":"none","alg":"RS256"}"#, &of_a().to_string()),
            Malformed,
        ),
        (
            "critical extension",
            headed(&json!({"alg": "RS256", "crit": ["b64"], "b64": false})),
            Critical,
        ),
        // Key
        ("kid of nobody", named("nobody"), Key),
        ("kid of another cluster", named(&b.id), Key),
        ("kid that is a path", named("../../../../dev/null"), Key),
        ("kid that is a query", named("x' UNION SELECT 'key'--"), Key),
        ("kid that is empty", named(""), Key),
        (
            "kid that is no text",
            headed(&json!({"alg": "RS256", "kid": {"a": 1}})),
            Malformed,
        ),
        (
            "own key in the header",
            stranger.sign(
                &json!({"alg": "RS256", "jwk": {"kty": "RSA"}}).to_string(),
                &of_a().to_string(),
            ),
            Signature,
        ),
        (
            "address of own keys in the header",
            stranger.sign(
                &json!({"alg": "RS256", "jku": "https://e.org"}).to_string(),
                &of_a().to_string(),
            ),
            Signature,
        ),
        // Signature
        ("no signature", format!("{header}.{payload}."), Signature),
        ("changed signature", format!("{header}.{payload}.{flipped}"), Signature),
        ("cut signature", format!("{header}.{payload}.{cut}"), Signature),
        (
            "signature of zeros, P-256",
            {
                let token = b.token(&of_b);
                let (signed, _) = token.rsplit_once('.').unwrap();
                format!("{signed}.{}", BASE64URL_NOPAD.encode(&[0; 64]))
            },
            Signature,
        ),
        (
            "other claims under a signature",
            format!("{header}.{other_payload}.{signature}"),
            Key,
        ),
        (
            "other claims, no key named",
            {
                let of_a = with("sub", json!("system:serviceaccount:kube-system:admin")).to_string();
                format!("{header}.{}.{signature}", to_part(&of_a))
            },
            Signature,
        ),
        (
            "signed by a stranger",
            stranger.sign(&a.header().to_string(), &of_a().to_string()),
            Signature,
        ),
        // Issuer
        (
            "iss of A signed by B",
            b.sign(r#"{"alg":"ES256"}"#, &of_a().to_string()),
            Key,
        ),
        (
            "iss of B signed by A",
            a.sign(r#"{"alg":"RS256"}"#, &of_b.to_string()),
            Key,
        ),
        (
            "iss of nobody",
            a.token(&claims("https://c.yoke.test", &[A], NOW)),
            Issuer,
        ),
        (
            "iss with a slash",
            a.token(&claims(&format!("{A}/"), &[A], NOW)),
            Issuer,
        ),
        (
            "iss in upper case",
            a.token(&claims(&A.to_uppercase(), &[A], NOW)),
            Issuer,
        ),
        (
            "iss of k0s, the same everywhere",
            a.token(&claims(COMMON, &[COMMON], NOW)),
            Issuer,
        ),
        (
            "iss of legacy tokens",
            a.token(&with("iss", json!("kubernetes/serviceaccount"))),
            Issuer,
        ),
        ("no iss", a.token(&without("iss")), Malformed),
        ("iss is a list", a.token(&with("iss", json!([A]))), Malformed),
        (
            "iss twice",
            twice("iss", &format!("\"{B}\""), &format!("\"{A}\"")),
            Malformed,
        ),
        // Times
        ("expired", a.token(&with("exp", json!(NOW - 60))), Expired),
        ("expired long ago", a.token(&with("exp", json!(i64::MIN))), Expired),
        ("no exp", a.token(&without("exp")), Malformed),
        (
            "of a Secret",
            a.token(&json!({"iss": "kubernetes/serviceaccount", "sub": "system:serviceaccount:default:robot"})),
            Issuer,
        ),
        ("exp is a text", a.token(&with("exp", json!("9999999999"))), Malformed),
        ("exp beyond all numbers", a.token(&with("exp", json!(1e300))), Malformed),
        ("not valid yet", a.token(&with("nbf", json!(NOW + 61))), Early),
        ("issued in the future", a.token(&with("iat", json!(NOW + 61))), Early),
        // Audience
        ("for nobody", a.token(&with("aud", json!([]))), Audience),
        ("no aud", a.token(&without("aud")), Malformed),
        ("aud is null", a.token(&with("aud", json!(null))), Malformed),
        ("aud is an object", a.token(&with("aud", json!({"a": A}))), Malformed),
        ("for a vault", a.token(&with("aud", json!(["vault"]))), Audience),
        (
            "for konnectivity",
            a.token(&with("aud", json!(["system:konnectivity-server"]))),
            Audience,
        ),
        ("iss of A for B", a.token(&claims(A, &[B], NOW)), Audience),
        (
            "aud that begins as A's",
            a.token(&with("aud", json!([format!("{A}.evil.org")]))),
            Audience,
        ),
        (
            "aud twice",
            twice("aud", r#"["vault"]"#, &format!("[\"{A}\"]")),
            Malformed,
        ),
    ] {
        assert_eq!(owner(&token), Err(expected), "{rule}");
    }
}

/// During a key rotation both keys sign. The old one is refused as soon as it is removed from the
/// cluster's keys.
#[test]
fn keys_are_rotated() {
    let Keys { a, stranger, .. } = keys();
    let (old, new) = (a.token(&of_a()), stranger.token(&of_a()));
    let both = [trust(A, &[a, stranger])];
    assert_eq!(owner_among(&old, &both), Ok(A.to_owned()));
    assert_eq!(owner_among(&new, &both), Ok(A.to_owned()));
    let after = [trust(A, &[stranger])];
    assert_eq!(owner_among(&old, &after), Err(TokenError::Key));
    assert_eq!(owner_among(&new, &after), Ok(A.to_owned()));
}

/// The cluster's own issuer decides, whatever cluster `find` returns for an issuer.
#[test]
fn the_found_cluster_must_have_the_issuer() {
    let Keys { a, .. } = keys();
    let other = trust(B, &[a]);
    let now = Timestamp::from_second(NOW).unwrap();
    let found = verify(
        &a.token(&claims(A, &[COMMON], NOW)),
        now,
        |_| Some(&other),
        |trust| *trust,
    );
    assert!(matches!(found, Err(TokenError::Issuer)));
}

#[test]
fn keys_of_other_kinds_are_refused() {
    let elliptic = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
    let edwards = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let private = rcgen::KeyPair::generate().unwrap().serialize_pem();
    let small = small_rsa_pem();
    for (rule, text) in [
        ("P-384", elliptic.public_key_pem()),
        ("Ed25519", edwards.public_key_pem()),
        ("a private key", private),
        ("RSA of 1024 bits", small),
        ("another tag", keys().a.pem.replace("PUBLIC KEY", "CERTIFICATE")),
    ] {
        assert!(matches!(TokenKey::from_pem(&text), Err(KeyError::Kind)), "{rule}");
    }
    assert!(matches!(TokenKey::from_pem("PEM"), Err(KeyError::Pem(_))));
}

/// The encoding of an RSA public key of 1024 bits, which the library does not generate.
fn small_rsa_pem() -> String {
    let mut modulus = vec![0x02, 0x81, 0x81, 0x00];
    modulus.extend([0xc5; 128]);
    let mut key = vec![0x30, 0x81, 0x89];
    key.extend(modulus);
    key.extend([0x02, 0x03, 0x01, 0x00, 0x01]);
    let algorithm = [
        0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00,
    ];
    let mut info = vec![0x30, 0x81, 0x9f];
    info.extend(algorithm);
    info.extend([0x03, 0x81, 0x8d, 0x00]);
    info.extend(key);
    pem::encode(&pem::Pem::new("PUBLIC KEY", info))
}

#[test]
fn every_reason_has_its_own_label() {
    let words: BTreeSet<_> = TokenError::ALL.iter().map(|error| error.as_str()).collect();
    assert_eq!(words.len(), TokenError::ALL.len());
}
