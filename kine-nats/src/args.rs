//! The command line.

use clap::Parser;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use yoke_runtime::tls::TlsFiles;

/// An etcd v3 server for kube-apiserver that keeps everything in a NATS JetStream log.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "kine-nats",
    version,
    max_term_width = 110,
    after_help = "kine-nats repair --help: how to go on with a store whose log has lost what was acknowledged"
)]
pub struct Args {
    /// Where to serve the etcd API: unix:///path, http://host:port or https://host:port. May be given more than once.
    #[arg(
        long,
        value_name = "URL",
        required = true,
        env = "KINE_NATS_LISTEN",
        value_delimiter = ','
    )]
    pub listen: Vec<Listen>,
    /// Where clients find this process, as the member list says. May be given more than once. The default is what is
    /// listened on; give it where that is an address like 0.0.0.0.
    #[arg(long, value_name = "URL", env = "KINE_NATS_ADVERTISE", value_delimiter = ',')]
    pub advertise: Vec<Listen>,
    /// File with the certificate of the https listeners, and those between it and its CA. This file and the next two are
    /// reread when they change.
    #[arg(long, value_name = "FILE", requires = "tls_key", env = "KINE_NATS_TLS_CERT")]
    pub tls_cert: Option<PathBuf>,
    /// File with the key of the certificate.
    #[arg(long, value_name = "FILE", requires = "tls_cert", env = "KINE_NATS_TLS_KEY")]
    pub tls_key: Option<PathBuf>,
    /// File with the certificates of CAs. With it, clients of the https listeners need a certificate of one of them; any
    /// will do. Without it, everybody who can connect reads and writes.
    #[arg(long, value_name = "FILE", requires = "tls_cert", env = "KINE_NATS_TLS_CLIENT_CA")]
    pub tls_client_ca: Option<PathBuf>,
    /// How to reach the store.
    #[command(flatten)]
    pub nats: NatsArgs,
    /// Make the streams when they do not exist. Without it they must.
    #[arg(long, env = "KINE_NATS_CREATE")]
    pub create: bool,
    /// With --create: on how many NATS servers the streams are kept. Of an even number as many may fail as of one less.
    #[arg(long, value_name = "N", default_value_t = 1, env = "KINE_NATS_REPLICAS")]
    pub replicas: usize,
    /// With --create: most bytes of the log. The default is twice the quota and 64 MiB.
    #[arg(long, value_name = "BYTES", env = "KINE_NATS_MAX_BYTES")]
    pub max_bytes: Option<u64>,
    /// Bytes of keys and history from which on puts are refused with NOSPACE. The default follows from the log's
    /// limit: half of what it has above 64 MiB; 512 MiB for streams made here.
    #[arg(long, value_name = "BYTES", env = "KINE_NATS_QUOTA")]
    pub quota: Option<u64>,
    /// Generation of this process. One with a lower generation than the log's last writer ends for good.
    #[arg(long, value_name = "N", default_value_t = 0, env = "KINE_NATS_INCARNATION")]
    pub incarnation: u64,
    /// Serve while another process writes, too: watches and serializable reads from what this process has read of the log,
    /// everything else by asking the writer. When the writer goes, one of the others takes over. A process that was
    /// replaced follows, where it ends without this. Give it to all processes of a stream, or to none.
    #[arg(long, env = "KINE_NATS_FOLLOW")]
    pub follow: bool,
    /// With --follow: a process that was replaced ends, as it does without, and does not follow who replaced it. For what runs
    /// beside the writer and may run once only, which finds out by /writer, where the metrics are.
    #[arg(long, requires = "follow", env = "KINE_NATS_END_WHEN_REPLACED")]
    pub end_when_replaced: bool,
    /// Answer a read that must be the newest only when the log has stored something that was sent to it after the read came,
    /// whatever a clock says: also a virtual machine that was stopped with all its clocks answers nothing stale. Reads that
    /// come together share a record; each waits as long as a write. Give it to all processes of a stream, or to none.
    #[arg(long, env = "KINE_NATS_STRICT_READS")]
    pub strict_reads: bool,
    /// Where to serve /metrics, /livez and /readyz over HTTP.
    #[arg(long, value_name = "ADDR", env = "KINE_NATS_METRICS")]
    pub metrics: Option<SocketAddr>,
    /// Where to hear of requests from the kube-apiserver beside this process, an address of loopback: it sends its audit events
    /// there, to the path /audit. When somebody last used it, and how many requests are open, is then told under /activity,
    /// where the metrics are.
    #[arg(long, value_name = "ADDR", requires = "metrics", value_parser = loopback, env = "KINE_NATS_AUDIT")]
    pub audit: Option<SocketAddr>,
    /// With --audit: a client that does not count, by its User-Agent, or by how that begins, with a * after it. May be given
    /// more than once.
    #[arg(long, value_name = "AGENT", requires = "audit", env = "KINE_NATS_IGNORE_USER_AGENT")]
    pub ignore_user_agent: Vec<String>,
    /// How often a quiet watch that asked for it is told how far it is.
    #[arg(long, value_name = "DUR", default_value = "1m", value_parser = duration, env = "KINE_NATS_PROGRESS_INTERVAL")]
    pub progress_interval: Duration,
    /// Log bytes after which a snapshot is stored. The default is a quarter of the log's limit, at most 64 MiB.
    #[arg(long, value_name = "BYTES", env = "KINE_NATS_SNAPSHOT_BYTES")]
    pub snapshot_bytes: Option<u64>,
    /// Form of the log lines on the error output: text or json.
    #[arg(long, value_name = "FORM", default_value = "text", env = "KINE_NATS_LOG_FORMAT")]
    pub log_format: LogFormat,
}

/// Where the streams of a store are.
#[derive(Debug, Clone, clap::Args)]
pub struct NatsArgs {
    /// NATS servers: nats://host:port, or tls://host:port where the connection has to be encrypted.
    /// May be given more than once, or as a list with commas.
    #[arg(
        long,
        value_name = "URL",
        required = true,
        env = "KINE_NATS_NATS",
        value_delimiter = ','
    )]
    pub nats: Vec<String>,
    /// File with the NATS user's JWT and seed.
    #[arg(long, value_name = "FILE", env = "KINE_NATS_CREDS")]
    pub creds: Option<PathBuf>,
    /// File with the certificates that NATS servers are verified against, in place of the system's.
    #[arg(long, value_name = "FILE", env = "KINE_NATS_CA")]
    pub nats_ca: Option<PathBuf>,
    /// Stream that holds the log: KINE_<id>. Snapshots are in KINE_SNAP_<id>.
    #[arg(long, value_name = "NAME", env = "KINE_NATS_STREAM")]
    pub stream: StreamName,
    /// Keep every other snapshot in another stream, KINE_SPARE_<id>: of a store on one server one damaged file then never
    /// holds both. Give it to all processes of a stream and to a repair, or to none.
    #[arg(long, env = "KINE_NATS_SPARE")]
    pub spare: bool,
}

/// Goes on with a store whose log has lost what was acknowledged, or cannot be followed any more: with what can be read,
/// at a revision far above any that was told, and without history. Stop all processes of the stream first. Clients list
/// anew. Without --accept-loss nothing is changed, and what is lost is said.
#[derive(Debug, Clone, Parser)]
#[command(name = "kine-nats repair", version, max_term_width = 110)]
pub struct RepairArgs {
    /// Where the store is.
    #[command(flatten)]
    pub nats: NatsArgs,
    /// How far above the newest revision that can be read the store goes on: more than was ever lost.
    #[arg(long, value_name = "N", default_value_t = 1_000_000_000, value_parser = clap::value_parser!(i64).range(1..=1 << 40))]
    pub bump: i64,
    /// Go on with what can be read.
    #[arg(long)]
    pub accept_loss: bool,
    /// Form of the log lines on the error output: text or json.
    #[arg(long, value_name = "FORM", default_value = "text", env = "KINE_NATS_LOG_FORMAT")]
    pub log_format: LogFormat,
}

/// What the process was started for.
#[derive(Debug)]
pub enum Cli {
    /// To serve.
    Serve(Box<Args>),
    /// To repair a store.
    Repair(Box<RepairArgs>),
}

impl Cli {
    /// Reads the command line, or ends the process and says what is wrong with it.
    pub fn parse() -> Self {
        let mut words: Vec<_> = std::env::args_os().collect();
        if words.get(1).is_some_and(|word| word == "repair") {
            words.remove(0);
            Self::Repair(Box::new(RepairArgs::parse_from(words)))
        } else {
            Self::Serve(Box::new(Args::parse_from(words)))
        }
    }
}

/// Listeners and certificates do not go together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TlsMismatch {
    /// A listener of TLS has no certificate.
    #[error("an https listener needs --tls-cert and --tls-key")]
    NoCertificate,
    /// Certificates that would protect nothing.
    #[error("--tls-cert and --tls-client-ca are for https listeners, and none is given")]
    NoListener,
}

impl Args {
    /// What the member list says of where to connect.
    pub(crate) fn client_urls(&self) -> Vec<String> {
        let urls = match self.advertise.as_slice() {
            [] => self.listen.as_slice(),
            advertised => advertised,
        };
        urls.iter().map(Listen::url).collect()
    }

    /// The files of the https listeners, if there are such listeners.
    pub(crate) fn tls_files(&self) -> Result<Option<TlsFiles>, TlsMismatch> {
        let secure = self.listen.iter().any(|listen| matches!(listen, Listen::Tls(_)));
        match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) if secure => Ok(Some(TlsFiles {
                certificate: certificate.clone(),
                key: key.clone(),
                client_ca: self.tls_client_ca.clone(),
            })),
            (None, None) if !secure => Ok(None),
            _ if secure => Err(TlsMismatch::NoCertificate),
            _ => Err(TlsMismatch::NoListener),
        }
    }
}

/// Form of the log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For machines.
    Json,
}

/// Where the etcd API is served, or found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// A unix socket.
    Unix(PathBuf),
    /// A host and a port, without TLS.
    Tcp(String),
    /// A host and a port, with TLS.
    Tls(String),
}

impl Listen {
    /// The address as a client writes it.
    pub fn url(&self) -> String {
        match self {
            Self::Unix(path) => format!("unix://{}", path.display()),
            Self::Tcp(address) => format!("http://{address}"),
            Self::Tls(address) => format!("https://{address}"),
        }
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix://")
            && path.starts_with('/')
        {
            return Ok(Self::Unix(path.into()));
        }
        let (kind, address): (fn(String) -> Self, _) = match text.strip_prefix("https://") {
            Some(address) => (Self::Tls, Some(address)),
            None => (Self::Tcp, text.strip_prefix("http://")),
        };
        match address.map(|rest| rest.trim_end_matches('/')) {
            Some(address) if address.contains(':') => Ok(kind(address.to_owned())),
            _ => Err("give unix:///path, http://host:port or https://host:port".to_owned()),
        }
    }
}

/// Name of the log's stream, `KINE_<id>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamName {
    id: String,
}

impl StreamName {
    /// The log's stream.
    pub fn log(&self) -> String {
        format!("KINE_{}", self.id)
    }

    /// The log's one subject.
    pub fn log_subject(&self) -> String {
        format!("kine.{}.log", self.id)
    }

    /// The snapshots' stream.
    pub fn snapshots(&self) -> String {
        format!("KINE_SNAP_{}", self.id)
    }

    /// What the snapshots' subjects begin with.
    pub fn snapshot_subject(&self) -> String {
        format!("kine.{}.snap", self.id)
    }

    /// The stream for every other snapshot.
    pub fn spare(&self) -> String {
        format!("KINE_SPARE_{}", self.id)
    }

    /// What the subjects begin with of the snapshots there.
    pub fn spare_subject(&self) -> String {
        format!("kine.{}.spare", self.id)
    }

    /// What the subjects begin with on which the processes of the store speak to each other.
    pub fn peers_subject(&self) -> String {
        format!("kine.{}.rpc", self.id)
    }

    /// What inboxes begin with.
    pub fn inbox(&self) -> String {
        format!("_INBOX_{}", self.id)
    }
}

impl FromStr for StreamName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let id = text.strip_prefix("KINE_").unwrap_or_default();
        let valid =
            !id.is_empty() && id.len() <= 64 && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if valid {
            Ok(Self { id: id.to_owned() })
        } else {
            Err("give KINE_<id>, the id of letters, digits and dashes".into())
        }
    }
}

/// An address that nobody reaches from elsewhere.
fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address: Option<SocketAddr> = text.parse().ok();
    let address = address.filter(|address| address.ip().is_loopback());
    address.ok_or_else(|| "give an address of loopback and a port, like 127.0.0.1:2382".to_owned())
}

/// A duration as Go writes it: 100ms, 5s, 1m30s, 10m0s. At least 100 ms.
fn duration(text: &str) -> Result<Duration, String> {
    let error = || "give a duration of at least 100ms, like 500ms, 5s or 1m30s".to_owned();
    let (mut rest, mut total) = (text, Duration::ZERO);
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(error)?;
        let (number, tail) = rest.split_at(end);
        let number: f64 = number.parse().map_err(|_| error())?;
        let unit_end = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let seconds = match unit {
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(error()),
        };
        total += Duration::try_from_secs_f64(number * seconds).map_err(|_| error())?;
        rest = tail;
    }
    if total < Duration::from_millis(100) {
        Err(error())
    } else {
        Ok(total)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn every_flag_is_explained() {
        let mut command = Args::command();
        command.build();
        command.clone().debug_assert();
        let all = command.get_subcommands().chain([&command]);
        let silent = all
            .flat_map(clap::Command::get_arguments)
            .find(|flag| flag.get_help().is_none());
        assert!(silent.is_none(), "{silent:?}");
    }

    #[test]
    fn reads_addresses() {
        assert_eq!(
            "unix:///run/kine.sock".parse(),
            Ok(Listen::Unix("/run/kine.sock".into()))
        );
        assert_eq!(
            "http://127.0.0.1:2379/".parse(),
            Ok(Listen::Tcp("127.0.0.1:2379".into()))
        );
        assert_eq!("https://[::]:2379".parse(), Ok(Listen::Tls("[::]:2379".into())));
        for bad in [
            "unix://relative",
            "https://a",
            "http://a",
            "tls://a:1",
            "127.0.0.1:1",
            "",
        ] {
            assert!(bad.parse::<Listen>().is_err(), "{bad}");
        }
    }

    #[test]
    fn members_are_found_where_it_is_said_or_listened() {
        let urls = |more: &[&str]| {
            let fixed = ["kine-nats", "--nats=nats://a:1", "--stream=KINE_a"];
            let listen = ["--listen=http://0.0.0.0:1", "--listen=unix:///s"];
            let args = Args::try_parse_from(fixed.iter().chain(&listen).chain(more));
            args.unwrap().client_urls()
        };
        assert_eq!(urls(&[]), ["http://0.0.0.0:1", "unix:///s"]);
        assert_eq!(
            urls(&["--advertise=https://a:1,https://b:2"]),
            ["https://a:1", "https://b:2"]
        );
    }

    #[test]
    fn certificates_and_https_listeners_go_together() {
        let parse = |more: &[&str]| {
            let fixed = ["kine-nats", "--nats=nats://a:1", "--stream=KINE_a"];
            Args::try_parse_from(fixed.iter().chain(more))
        };
        let files = |more: &[&str]| parse(more).unwrap().tls_files();
        let (http, https) = ("--listen=http://a:1", "--listen=https://a:2");
        let pair = ["--tls-cert=c", "--tls-key=k"];
        assert_eq!(files(&[http]), Ok(None));
        assert_eq!(files(&[http, https]), Err(TlsMismatch::NoCertificate));
        assert_eq!(files(&[http, pair[0], pair[1]]), Err(TlsMismatch::NoListener));
        let all = files(&[https, pair[0], pair[1], "--tls-client-ca=a"]).unwrap().unwrap();
        assert_eq!(
            (all.certificate, all.key, all.client_ca),
            ("c".into(), "k".into(), Some("a".into()))
        );
        for half in [&[https, pair[0]][..], &[https, pair[1]], &[https, "--tls-client-ca=a"]] {
            assert!(parse(half).is_err(), "{half:?}");
        }
    }

    #[test]
    fn reads_stream_names() {
        let name: StreamName = "KINE_ab12-c".parse().unwrap();
        assert_eq!(
            (name.log(), name.snapshots()),
            ("KINE_ab12-c".into(), "KINE_SNAP_ab12-c".into())
        );
        assert_eq!(
            (name.log_subject(), name.snapshot_subject()),
            ("kine.ab12-c.log".into(), "kine.ab12-c.snap".into())
        );
        for bad in ["KINE_", "kine_a", "KINE_a.b", "KINE_a>", "KINE_a b"] {
            assert!(bad.parse::<StreamName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn events_are_heard_from_this_machine_only() {
        for (text, is_good) in [
            ("127.0.0.1:2382", true),
            ("[::1]:2382", true),
            ("0.0.0.0:2382", false),
            ("192.0.2.1:2382", false),
            ("localhost:2382", false),
        ] {
            assert_eq!(loopback(text).is_ok(), is_good, "{text}");
        }
    }

    #[test]
    fn reads_durations() {
        for (text, milliseconds) in [
            ("100ms", 100),
            ("5s", 5000),
            ("1m30s", 90_000),
            ("10m0s", 600_000),
            ("0.5s", 500),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for bad in ["", "0s", "5", "s", "5x", "-1s", "99ms"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
