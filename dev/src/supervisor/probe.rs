//! Runs the health check of a service.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Probe;
use crate::command::Command;

const LIMIT: Duration = Duration::from_secs(4);
const ANSWER_LIMIT: u64 = 4096;

impl Probe {
    /// Returns `None` if the service is healthy, else the reason.
    pub(super) async fn check(&self) -> Option<String> {
        match self {
            Self::Http { address, path } => match tokio::time::timeout(LIMIT, get(address, path)).await {
                Ok(Ok(answer)) => to_problem(&answer),
                Ok(Err(error)) => Some(format!("{address}: {error}")),
                Err(_) => Some(format!("{address} did not answer within {LIMIT:?}")),
            },
            Self::Command(command) => {
                let (program, args) = command.split_first()?;
                match Command::new(program).args(args).limit(LIMIT).run().await {
                    Ok(()) => None,
                    Err(error) => Some(error.to_line()),
                }
            }
        }
    }
}

async fn get(address: &str, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(ANSWER_LIMIT).read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn to_problem(answer: &str) -> Option<String> {
    let status = answer.lines().next().unwrap_or_default();
    if status.split(' ').nth(1) == Some("200") {
        return None;
    }
    let body = answer
        .split_once("\r\n\r\n")
        .map_or("", |(_, body)| body)
        .lines()
        .next()
        .unwrap_or_default();
    Some(format!("{status} {body}").trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_200_is_healthy() {
        let table = [
            ("200", "HTTP/1.1 200 OK\r\n\r\nok", None),
            (
                "not ready",
                "HTTP/1.1 503 No\r\n\r\nstarting\nmore",
                Some("HTTP/1.1 503 No starting"),
            ),
            ("silence", "", Some("")),
        ];
        for (rule, answer, expected) in table {
            assert_eq!(to_problem(answer).as_deref(), expected, "{rule}");
        }
    }
}
