//! A kube-apiserver on the measured store, and its client.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use http::Request;
use rustix::process::Signal;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use tempfile::TempDir;
use yoke_test_support::kubernetes::{OWNER_TOKEN, Options};

use crate::process::{Cores, Process};

/// Number of objects in a page of a list.
const PAGE: usize = 500;
/// Timeout for each wait: a million objects take minutes to load.
const LIMIT: Duration = Duration::from_secs(15 * 60);
const PAUSE: Duration = Duration::from_millis(100);

/// A running kube-apiserver.
pub(super) struct Server {
    pub(super) process: Process,
    /// Client with all permissions.
    pub(super) client: Client,
    _dir: TempDir,
}

impl Server {
    /// Starts a server on the store at `store`, a host and a port.
    pub(super) fn start(store: &str, cores: &Cores, memory_limit: &str) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("store-bench-").tempdir()?;
        let store = format!("http://{store}");
        let options = Options::new(&store);
        let limit = format!("GOMEMLIMIT={memory_limit}");
        let program = ["env", &limit, "kube-apiserver"].map(str::to_owned);
        let arguments = [&program[..], &options.prepare(dir.path())].concat();
        Ok(Self {
            process: Process::start(cores, &arguments, &dir.path().join("kube-apiserver.log"))?,
            client: Client::new(&options.url())?,
            _dir: dir,
        })
    }

    /// Stops the server with SIGTERM.
    pub(super) fn end(&mut self) -> Result<()> {
        self.process.end(Signal::TERM)
    }

    /// Starts the server again after it was stopped.
    pub(super) fn begin(&mut self) -> Result<()> {
        self.process.begin()
    }

    /// Waits until an object can be created, and creates it.
    pub(super) async fn writable(&mut self, (path, object): (String, Vec<u8>)) -> Result<()> {
        let begun = Instant::now();
        while let Err(error) = self.client.create(&path, object.clone()).await {
            let status = error.downcast_ref::<kube::Error>();
            // An attempt without an answer may have created the object.
            if matches!(status, Some(kube::Error::Api(status)) if status.code == 409) {
                break;
            }
            self.process.check()?;
            ensure!(begun.elapsed() < LIMIT, "kube-apiserver creates nothing: {error:#}");
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Waits until `/readyz` succeeds.
    pub(super) async fn ready(&mut self) -> Result<()> {
        let begun = Instant::now();
        while self.client.text("/readyz").await.is_err() {
            self.process.check()?;
            ensure!(begun.elapsed() < LIMIT, "kube-apiserver is not ready");
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }
}

#[derive(Clone)]
pub(super) struct Client(kube::Client);

/// A page of a list. The objects are only counted.
#[derive(Deserialize)]
pub(super) struct Page {
    metadata: PageMetadata,
    pub(super) items: Vec<IgnoredAny>,
}

#[derive(Deserialize)]
struct PageMetadata {
    #[serde(default, rename = "continue")]
    next: String,
}

impl Client {
    fn new(url: &str) -> Result<Self> {
        let mut config = kube::Config::new(url.parse()?);
        config.accept_invalid_certs = true;
        config.auth_info.token = Some(OWNER_TOKEN.to_owned().into());
        // The benchmark measures waiting and response times itself, so the client does not retry.
        config.default_retry = false;
        config.disable_compression = true;
        Ok(Self(kube::Client::try_from(config)?))
    }

    async fn text(&self, path: &str) -> Result<String> {
        let request = Request::get(path).body(Vec::new())?;
        Ok(self.0.request_text(request).await?)
    }

    /// Creates an object below a path.
    pub(super) async fn create(&self, path: &str, object: Vec<u8>) -> Result<()> {
        let request = Request::post(path).header(http::header::CONTENT_TYPE, "application/json");
        self.0.request_text(request.body(object)?).await?;
        Ok(())
    }

    /// Reads a path until `is` accepts the answer. An error counts as an answer that is not
    /// accepted.
    pub(super) async fn wait<T: DeserializeOwned>(&self, path: &str, is: impl Fn(&T) -> bool) -> Result<()> {
        let begun = Instant::now();
        loop {
            let answer = self.text(path).await.and_then(|text| Ok(serde_json::from_str(&text)?));
            let late = begun.elapsed() > LIMIT;
            match answer {
                Ok(answer) if is(&answer) => return Ok(()),
                Err(error) if late => return Err(error).with_context(|| format!("waiting for {path}")),
                Ok(_) if late => anyhow::bail!("{path} is not as it should be"),
                _ => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    /// Lists the objects below a path in pages. Returns their number.
    pub(super) async fn list(&self, path: &str) -> Result<u64> {
        let (mut seen, mut next) = (0, String::new());
        loop {
            let text = self.text(&format!("{path}?limit={PAGE}&continue={next}")).await?;
            let page: Page = serde_json::from_str(&text)?;
            seen += page.items.len() as u64;
            if page.metadata.next.is_empty() {
                return Ok(seen);
            }
            next = page.metadata.next;
        }
    }
}
