//! Three nats-servers that replicate streams, and connections to them that can be cut.

use yoke_test_support::free_port;

use crate::harness::{Nats, Servers, eventually};
use crate::loss::Disks;
use serde_json::Value;
use std::time::Duration;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The servers. Clients reach them only through proxies: no server announces the others' own
/// addresses.
pub(crate) struct Cluster {
    pub(crate) servers: Vec<Nats>,
    ports: Vec<u16>,
    lines: watch::Sender<bool>,
}

impl Servers for Cluster {
    fn urls(&self) -> String {
        let urls: Vec<_> = self
            .ports
            .iter()
            .map(|port| format!("nats://127.0.0.1:{port}"))
            .collect();
        urls.join(",")
    }

    fn replicas(&self) -> usize {
        self.servers.len()
    }
}

impl Disks for Cluster {
    fn all(&mut self) -> &mut [Nats] {
        &mut self.servers
    }
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        let routes: Vec<_> = (0..3).map(|_| free_port()).collect();
        let all: Vec<_> = routes.iter().map(|port| format!("nats://127.0.0.1:{port}")).collect();
        let config = |(number, port): (usize, &u16)| {
            let all = all.join(", ");
            format!(
                "server_name: n{number}\ncluster {{ name: c, listen: \"127.0.0.1:{port}\", no_advertise: true, routes: [{all}] }}\n"
            )
        };
        let mut servers: Vec<_> = routes.iter().enumerate().map(config).map(Nats::new).collect();
        futures::future::join_all(servers.iter_mut().map(Nats::restart)).await;
        let (lines, open) = watch::channel(true);
        let mut ports = Vec::new();
        for server in &servers {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            ports.push(listener.local_addr().unwrap().port());
            tokio::spawn(carry(listener, server.port(), open.clone()));
        }
        let mut cluster = Self { servers, ports, lines };
        // The servers connect and agree on a leader some time after they listen.
        let probe = serde_json::json!({ "name": "probe", "subjects": ["probe"], "num_replicas": 3 });
        cluster.ask("CREATE.probe", &probe.to_string()).await;
        cluster.is_whole(&["probe"]).await;
        cluster.ask("DELETE.probe", "").await;
        cluster
    }

    /// Closes every client connection, and accepts none until told to.
    pub(crate) fn set_lines(&self, open: bool) {
        self.lines.send_replace(open);
    }

    async fn info(&self, stream: &str) -> Option<Value> {
        for server in &self.servers {
            let options = async_nats::ConnectOptions::new().request_timeout(Some(Duration::from_millis(500)));
            let Ok(client) = options.connect(server.url()).await else {
                continue;
            };
            let subject = format!("$JS.API.STREAM.INFO.{stream}");
            if let Ok(answer) = client.request(subject, "".into()).await {
                return serde_json::from_slice(&answer.payload).ok();
            }
        }
        None
    }

    /// The number of the server that leads a stream.
    pub(crate) async fn leader(&self, stream: &str) -> usize {
        eventually("a leader of the stream", || async {
            let info = self.info(stream).await?;
            info["cluster"]["leader"].as_str()?.strip_prefix('n')?.parse().ok()
        })
        .await
    }

    /// Makes one of the servers lead a stream.
    pub(crate) async fn lead(&self, stream: &str, server: usize) {
        let client = async_nats::connect(self.servers[server].url()).await.unwrap();
        eventually("the server to lead the stream", || async {
            let wish = format!(r#"{{"placement":{{"preferred":"n{server}"}}}}"#);
            let subject = format!("$JS.API.STREAM.LEADER.STEPDOWN.{stream}");
            let _ = client.request(subject, wish.into()).await;
            (self.leader(stream).await == server).then_some(())
        })
        .await;
    }

    /// Waits until every server holds all of these streams.
    pub(crate) async fn is_whole(&self, streams: &[&str]) {
        for stream in streams {
            eventually("all servers to have the stream", || async {
                let info = self.info(stream).await?;
                let replicas = info["cluster"]["replicas"].as_array()?;
                (replicas.len() == 2 && replicas.iter().all(|replica| replica["current"] == true)).then_some(())
            })
            .await;
        }
    }
}

async fn carry(listener: TcpListener, port: u16, open: watch::Receiver<bool>) {
    while let Ok((mut near, _)) = listener.accept().await {
        let mut open = open.clone();
        tokio::spawn(async move {
            let Ok(mut far) = TcpStream::connect(("127.0.0.1", port)).await else {
                return;
            };
            tokio::select! {
                _ = copy_bidirectional(&mut near, &mut far) => {}
                _ = open.wait_for(|open| !open) => {}
            }
        });
    }
}
