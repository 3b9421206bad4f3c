//! A process that stops, at a NATS server that has sent it a request.

use super::*;
use crate::store::peers::PeerAnswer;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::Instant;

const SUBJECT: &str = "kine.a.rpc";
const MEMBER: u64 = 7;
const INFO: &str = r#"INFO {"server_id":"a","server_name":"a","version":"2.15.2","go":"","host":"127.0.0.1","port":4222,"headers":true,"max_payload":8388608,"proto":1,"client_id":1}"#;

/// When the server sends the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sends {
    AtOnce,
    /// When it learns that the process is stopping, from an announcement or from the end of a
    /// subscription.
    AsItGoes,
}

/// Plays a server for one client; sends the answers to the request through `answers`.
async fn serve(stream: TcpStream, sends: Sends, answers: mpsc::UnboundedSender<Vec<u8>>) -> std::io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    write.write_all(format!("{INFO}\r\n").as_bytes()).await?;
    let (mut subscriptions, mut request) = (String::new(), String::new());
    while read.read_line(&mut subscriptions).await? > 0 {
        let words: Vec<&str> = subscriptions.split_whitespace().collect();
        let mut goes = false;
        match words[..] {
            ["PING"] => write.write_all(b"PONG\r\n").await?,
            ["SUB", subject, number] if subject == to_one(SUBJECT, MEMBER) => {
                request = format!("MSG {subject} {number} answer 0\r\n\r\n");
            }
            ["SUB", subject, number] if subject == to_all(SUBJECT) => {
                if sends == Sends::AtOnce {
                    write.write_all(std::mem::take(&mut request).as_bytes()).await?;
                }
                let word = format!("MSG {subject} {number} 0\r\n\r\n");
                write.write_all(word.as_bytes()).await?;
            }
            ["UNSUB", ..] => {
                // The request was sent earlier, and arrives while the client processes other
                // messages.
                write.write_all(b"PING\r\n").await?;
                sleep(Duration::from_millis(50)).await;
                goes = true;
            }
            ["PUB", subject, .., length] => {
                let mut payload = vec![0; length.parse::<usize>().unwrap() + 2];
                read.read_exact(&mut payload).await?;
                payload.truncate(payload.len() - 2);
                if subject == "answer" {
                    let _ = answers.send(payload);
                } else {
                    goes = subject == to_all(SUBJECT);
                }
            }
            _ => {}
        }
        if goes {
            write.write_all(std::mem::take(&mut request).as_bytes()).await?;
        }
        subscriptions.clear();
    }
    Ok(())
}

/// Stops a process; returns its answer to a request, and how long the stop took.
async fn answered(sends: Sends, has_others: bool) -> (Option<PeerAnswer>, Duration) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (answers, mut answered) = mpsc::unbounded_channel();
    tokio::spawn(async move { serve(listener.accept().await.unwrap().0, sends, answers).await });
    let client = async_nats::connect(address.to_string()).await.unwrap();
    let (peers, mut subscriptions) = NatsPeers::open(client.clone(), SUBJECT.into(), MEMBER, "a".into(), Vec::new())
        .await
        .unwrap();
    if has_others {
        let other = Announcement {
            member: 8,
            ..peers.own.clone()
        };
        peers.roster().record(other, clock::now());
    }
    // Everything that the server sent before this message has arrived, too.
    subscriptions.all.next().await.unwrap();
    let start = Instant::now();
    peers.leave(&mut subscriptions, &watch::channel(None).1).await;
    let took = start.elapsed();
    // The server reads until the connection closes.
    drop((client, peers, subscriptions));
    let bytes = answered.recv().await;
    let answer = bytes.map(|bytes| {
        let complete = AnswerParts::default().take(None, &bytes).unwrap().unwrap();
        message::decode_answer(&complete).unwrap()
    });
    (answer, took)
}

#[tokio::test]
async fn a_leaving_process_answers_until_others_know() {
    let (answer, _) = answered(Sends::AsItGoes, true).await;
    assert!(matches!(answer, Some(PeerAnswer::NotStarted)), "{answer:?}");
}

#[tokio::test]
async fn a_process_without_peers_answers_and_leaves_at_once() {
    let (answer, took) = answered(Sends::AtOnce, false).await;
    assert!(matches!(answer, Some(PeerAnswer::NotStarted)), "{answer:?}");
    assert!(took < QUIET, "{took:?}");
}
