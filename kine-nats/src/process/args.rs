//! The command line: flags, environment variables, addresses and stream names.

use crate::grpc::listen::Listen;
use crate::nats::NatsArgs;
use clap::Parser;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use yoke_runtime::tls::TlsFiles;

/// An etcd v3 server for kube-apiserver that stores everything in a NATS JetStream log.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "kine-nats",
    version,
    max_term_width = 110,
    after_help = "kine-nats repair --help explains how to continue a store whose log has lost acknowledged records"
)]
pub struct Args {
    /// Address to serve the etcd API on: unix:///path, http://host:port or https://host:port. May
    /// be repeated.
    #[arg(
        long,
        value_name = "URL",
        required = true,
        env = "KINE_NATS_LISTEN",
        value_delimiter = ','
    )]
    pub listen: Vec<Listen>,
    /// Address at which clients reach this process, as shown in the member list. May be repeated.
    /// The default is the listen addresses; set it if those are wildcards such as 0.0.0.0.
    #[arg(long, value_name = "URL", env = "KINE_NATS_ADVERTISE", value_delimiter = ',')]
    pub advertise: Vec<Listen>,
    /// File with the certificate of the https listeners, followed by its intermediate certificates.
    /// This file, the key and the client CA are reread when they change.
    #[arg(long, value_name = "FILE", requires = "tls_key", env = "KINE_NATS_TLS_CERT")]
    pub tls_cert: Option<PathBuf>,
    /// File with the private key of the certificate.
    #[arg(long, value_name = "FILE", requires = "tls_cert", env = "KINE_NATS_TLS_KEY")]
    pub tls_key: Option<PathBuf>,
    /// File with CA certificates. With it, clients of the https listeners must present a
    /// certificate of one of these CAs; its subject is not checked. Without it, every client that
    /// can connect may read and write.
    #[arg(long, value_name = "FILE", requires = "tls_cert", env = "KINE_NATS_TLS_CLIENT_CA")]
    pub tls_client_ca: Option<PathBuf>,
    /// Connection to NATS and names of the streams.
    #[command(flatten)]
    pub nats: NatsArgs,
    /// Create the streams if they do not exist. Without it they must exist.
    #[arg(long, env = "KINE_NATS_CREATE")]
    pub create: bool,
    /// With --create: number of NATS servers that store each stream. An even number tolerates no
    /// more failures than the odd number below it.
    #[arg(long, value_name = "N", default_value_t = 1, env = "KINE_NATS_REPLICAS")]
    pub replicas: usize,
    /// With --create: size limit of the log in bytes. The default is twice the quota plus 64 MiB.
    #[arg(long, value_name = "BYTES", env = "KINE_NATS_MAX_BYTES")]
    pub max_bytes: Option<u64>,
    /// Bytes of keys and history above which puts are refused with NOSPACE. The default is half of
    /// what the log's limit exceeds 64 MiB by; 512 MiB for streams that this process creates.
    #[arg(long, value_name = "BYTES", env = "KINE_NATS_QUOTA")]
    pub quota: Option<u64>,
    /// Generation of this process. A process whose generation is lower than that of the log's last
    /// writer exits for good.
    #[arg(long, value_name = "N", default_value_t = 0, env = "KINE_NATS_INCARNATION")]
    pub incarnation: u64,
    /// Serve also while another process writes: watches and serializable reads from what this
    /// process has read of the log, everything else through the writer. When the writer is gone,
    /// one of the followers takes over. A replaced writer follows; without this flag it exits. Set
    /// it on all processes of a stream, or on none.
    #[arg(long, env = "KINE_NATS_FOLLOW")]
    pub follow: bool,
    /// With --follow: exit when another process becomes the writer, as without --follow, instead of
    /// following it. Use it if a program beside the writer may run only once; such a program
    /// watches /writer on the metrics listener.
    #[arg(long, requires = "follow", env = "KINE_NATS_END_WHEN_REPLACED")]
    pub end_when_replaced: bool,
    /// Answer a linearizable read only after the log has stored a record that was sent after the
    /// read arrived. The answer then does not depend on clocks: even a virtual machine that was
    /// suspended with all its clocks returns nothing stale. Reads that arrive together share a
    /// record; each waits as long as a write. Set it on all processes of a stream, or on none.
    #[arg(long, env = "KINE_NATS_STRICT_READS")]
    pub strict_reads: bool,
    /// Address to serve /metrics, /livez and /readyz on, over HTTP.
    #[arg(long, value_name = "ADDR", env = "KINE_NATS_METRICS")]
    pub metrics: Option<SocketAddr>,
    /// Loopback address on which to receive the audit events of the kube-apiserver beside this
    /// process, at the path /audit. The time of the last use and the number of open requests are
    /// then served at /activity on the metrics listener.
    #[arg(long, value_name = "ADDR", requires = "metrics", value_parser = loopback, env = "KINE_NATS_AUDIT")]
    pub audit: Option<SocketAddr>,
    /// With --audit: client that does not count as activity, by its User-Agent or by a prefix of it
    /// followed by *. May be repeated.
    #[arg(long, value_name = "AGENT", requires = "audit", env = "KINE_NATS_IGNORE_USER_AGENT")]
    pub ignore_user_agent: Vec<String>,
    /// Interval of progress notifications on idle watches that requested them.
    #[arg(long, value_name = "DUR", default_value = "1m", value_parser = duration, env = "KINE_NATS_PROGRESS_INTERVAL")]
    pub progress_interval: Duration,
    /// Bytes of log after which a snapshot is stored. The default is a quarter of the log's limit,
    /// at most 64 MiB.
    #[arg(long, value_name = "BYTES", env = "KINE_NATS_SNAPSHOT_BYTES")]
    pub snapshot_bytes: Option<u64>,
    /// Format of the log lines on standard error: text or json.
    #[arg(long, value_name = "FORM", default_value = "text", env = "KINE_NATS_LOG_FORMAT")]
    pub log_format: LogFormat,
}

/// Continues a store whose log has lost acknowledged records or can no longer be followed. The
/// store keeps what can be read, continues at a revision far above every earlier one, and has no
/// history; clients list again. Stop all processes of the stream first. Without --accept-loss
/// nothing is changed and the loss is reported.
#[derive(Debug, Clone, Parser)]
#[command(name = "kine-nats repair", version, max_term_width = 110)]
pub struct RepairArgs {
    /// Connection to NATS and names of the streams.
    #[command(flatten)]
    pub nats: NatsArgs,
    /// Distance between the newest revision that can be read and the revision at which the store
    /// continues. It must exceed the number of lost revisions.
    #[arg(long, value_name = "N", default_value_t = 1_000_000_000, value_parser = clap::value_parser!(i64).range(1..=1 << 40))]
    pub bump: i64,
    /// Continue with what can be read. Without it, nothing is changed.
    #[arg(long)]
    pub accept_loss: bool,
    /// Format of the log lines on standard error: text or json.
    #[arg(long, value_name = "FORM", default_value = "text", env = "KINE_NATS_LOG_FORMAT")]
    pub log_format: LogFormat,
}

/// The command that the process was started with.
#[derive(Debug)]
pub enum Cli {
    /// Serves a store.
    Serve(Box<Args>),
    /// Repairs a store.
    Repair(Box<RepairArgs>),
}

impl Cli {
    /// Parses the command line. On an error, prints it and exits the process.
    pub fn parse() -> Self {
        let mut arguments: Vec<_> = std::env::args_os().collect();
        if arguments.get(1).is_some_and(|argument| argument == "repair") {
            arguments.remove(0);
            Self::Repair(Box::new(RepairArgs::parse_from(arguments)))
        } else {
            Self::Serve(Box::new(Args::parse_from(arguments)))
        }
    }
}

/// The listeners do not match the certificate flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TlsMismatch {
    /// An https listener without a certificate.
    #[error("an https listener needs --tls-cert and --tls-key")]
    NoCertificate,
    /// A certificate without an https listener: it would protect nothing.
    #[error("--tls-cert and --tls-client-ca need an https listener, and --listen has none")]
    NoListener,
}

impl Args {
    /// The client URLs of this process in the member list.
    pub(crate) fn client_urls(&self) -> Vec<String> {
        let urls = match self.advertise.as_slice() {
            [] => self.listen.as_slice(),
            advertised => advertised,
        };
        urls.iter().map(Listen::url).collect()
    }

    /// The files of the https listeners; `None` without such a listener.
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

/// Format of the log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Parses an address that only this node can reach.
fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address: Option<SocketAddr> = text.parse().ok();
    let address = address.filter(|address| address.ip().is_loopback());
    address.ok_or_else(|| "use a loopback address with a port, such as 127.0.0.1:2382".to_owned())
}

/// Parses a duration in Go's syntax: 100ms, 5s, 1m30s, 10m0s. At least 100 ms.
fn duration(text: &str) -> Result<Duration, String> {
    let error = || "use a duration of at least 100ms, such as 500ms, 5s or 1m30s".to_owned();
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
        let unexplained = all
            .flat_map(clap::Command::get_arguments)
            .find(|flag| flag.get_help().is_none());
        assert!(unexplained.is_none(), "{unexplained:?}");
    }

    #[test]
    fn the_client_address_is_advertised_or_listened_on() {
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
    fn events_are_accepted_from_localhost_only() {
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
    fn durations_are_parsed() {
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
