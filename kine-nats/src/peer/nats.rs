//! The connection to the other processes over NATS. All answers arrive in one inbox, with a number
//! for each request.

use crate::clock;
use crate::command::Command;
use crate::peer::message::{self, Announcement, Broadcast};
use crate::peer::parts::{self, AnswerParts};
use crate::peer::roster::{ANNOUNCE_INTERVAL, Roster};
use crate::peer::serve;
use crate::store::Store;
use crate::store::peers::Member;
use crate::store::peers::{PeerAnswer, PeerError, Peers};
use anyhow::{Context, bail};
use async_nats::connection::State as Connection;
use async_nats::{Client, Message, StatusCode, Subscriber};
use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::time::{interval, sleep, timeout};

/// Requests of other processes that are executed concurrently; further ones are rejected before
/// they start.
const BUSY: u32 = 1024;
/// Shortest interval between two announcements of the end of the log.
const SPACING: Duration = Duration::from_millis(1);
/// Timeout of the last answers while stopping.
const LEAVING: Duration = Duration::from_secs(1);
/// If no request arrives for this long, none is in transit.
const QUIET: Duration = Duration::from_millis(200);

type Stores = watch::Receiver<Option<Arc<Store>>>;

/// A pending request whose answer is not complete yet.
#[derive(Debug)]
struct Waiting {
    parts: AnswerParts,
    answer: oneshot::Sender<Result<Bytes, PeerError>>,
}

/// This process as a peer of the others.
#[derive(Debug)]
pub(crate) struct NatsPeers {
    client: Client,
    /// `kine.<id>.rpc`.
    subject: String,
    inbox: String,
    own: Announcement,
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, Waiting>>,
    roster: Mutex<Roster>,
    busy: Arc<Semaphore>,
}

/// Subscriptions of this process.
#[derive(Debug)]
pub(crate) struct Subscriptions {
    answers: Subscriber,
    requests: Subscriber,
    all: Subscriber,
}

impl NatsPeers {
    /// Subscribes to answers, requests and broadcasts.
    pub(crate) async fn open(
        client: Client,
        subject: String,
        member: u64,
        name: String,
        client_urls: Vec<String>,
    ) -> anyhow::Result<(Arc<Self>, Subscriptions)> {
        let own = Announcement {
            member,
            name,
            client_urls,
            leaving: false,
            full: false,
        };
        let inbox = client.new_inbox();
        let subscribe = async |subject: String| {
            let subscription = client.subscribe(subject.clone()).await;
            subscription.with_context(|| format!("subscribe to {subject}"))
        };
        let subscriptions = Subscriptions {
            answers: subscribe(format!("{inbox}.*")).await?,
            requests: subscribe(to_one(&subject, member)).await?,
            all: subscribe(to_all(&subject)).await?,
        };
        let peers = Self {
            client,
            subject,
            inbox,
            own,
            next: AtomicU64::new(0),
            waiting: Mutex::default(),
            roster: Mutex::default(),
            busy: Arc::new(Semaphore::new(BUSY as usize)),
        };
        Ok((Arc::new(peers), subscriptions))
    }

    /// Receives messages, answers requests, and announces the end of the log.
    pub(crate) async fn run(&self, subscriptions: &mut Subscriptions, stores: Stores) -> anyhow::Result<()> {
        tokio::select! {
            result = self.listen(subscriptions, stores.clone()) => result,
            () = self.announce_progress(stores) => bail!("the store was dropped"),
        }
    }

    async fn listen(&self, subscriptions: &mut Subscriptions, stores: Stores) -> anyhow::Result<()> {
        let mut tick = interval(ANNOUNCE_INTERVAL);
        loop {
            let message = tokio::select! {
                answer = subscriptions.answers.next() => answer.map(|answer| self.on_answer(answer)),
                request = subscriptions.requests.next() => request.map(|request| self.on_request(request, &stores)),
                message = subscriptions.all.next() => message.map(|message| self.on_broadcast(&message, &stores)),
                _ = tick.tick() => {
                    let store = stores.borrow().clone();
                    if !store.as_ref().is_some_and(|store| store.is_writer()) || self.has_other_members() {
                        let full = store.is_some_and(|store| store.is_full());
                        self.broadcast(&Broadcast::Announcement(Announcement { full, ..self.own.clone() })).await;
                    }
                    Some(())
                }
            };
            message.context("the subscriptions to other processes ended")?;
        }
    }

    fn on_answer(&self, message: Message) {
        let Some(number) = message.subject.rsplit('.').next().and_then(|last| last.parse().ok()) else {
            return;
        };
        let mut waiting = self.lock();
        let result = if message.status == Some(StatusCode::NO_RESPONDERS) {
            Err(PeerError::NotDelivered)
        } else {
            let Some(pending) = waiting.get_mut(&number) else {
                return;
            };
            let Some(done) = pending.parts.take(message.headers.as_ref(), &message.payload) else {
                return;
            };
            done
        };
        if let Some(pending) = waiting.remove(&number) {
            // The sender of the request may not wait any more.
            let _ = pending.answer.send(result);
        }
    }

    fn on_request(&self, message: Message, stores: &Stores) {
        let Some(reply) = message.reply else { return };
        let client = self.client.clone();
        let (store, permit) = (stores.borrow().clone(), Arc::clone(&self.busy).try_acquire_owned());
        tokio::spawn(async move {
            let answer = match (&store, &permit) {
                (Some(store), Ok(_)) => serve(store, &message.payload).await,
                _ => message::encode_answer(PeerAnswer::NotStarted),
            };
            for (header, part) in parts::split(&answer) {
                let reply = reply.clone();
                let sent = match header {
                    Some(header) => client.publish_with_headers(reply, header, part).await,
                    None => client.publish(reply, part).await,
                };
                if sent.is_err() {
                    return;
                }
            }
            drop(permit);
        });
    }

    fn on_broadcast(&self, message: &Message, stores: &Stores) {
        match message::decode_broadcast(&message.payload) {
            Ok(Broadcast::Stored(sequence)) => {
                if let Some(store) = &*stores.borrow() {
                    store.notify_appended(sequence);
                }
            }
            Ok(Broadcast::Announcement(peer)) => self.roster().record(peer, clock::now()),
            Ok(Broadcast::Successor(member)) => {
                if let Some(store) = &*stores.borrow() {
                    store.name_successor(member);
                }
            }
            Err(error) => tracing::debug!(error = %error, "Ignoring a broadcast that this version cannot decode"),
        }
    }

    /// Announces the end of the log whenever this process appended to it.
    async fn announce_progress(&self, mut stores: Stores) {
        let Ok(Some(store)) = stores.wait_for(Option::is_some).await.map(|store| store.clone()) else {
            return;
        };
        let mut announced = 0;
        loop {
            let changed = store.changed();
            let sequence = store.written();
            if sequence > announced && self.has_other_members() {
                announced = sequence;
                self.broadcast(&Broadcast::Stored(sequence)).await;
                sleep(SPACING).await;
            } else {
                changed.await;
            }
        }
    }

    /// Whether another process announced itself lately.
    fn has_other_members(&self) -> bool {
        let members = self.roster().members(clock::now());
        members.iter().any(|member| member.id != self.own.member)
    }

    async fn broadcast(&self, message: &Broadcast) {
        if self.client.connection_state() == Connection::Connected {
            // Delivery is not required.
            let _ = self
                .client
                .publish(to_all(&self.subject), message::encode_broadcast(message))
                .await;
        }
    }

    /// Announces the end of the log and that this process is stopping, so that others send no
    /// further requests. It then answers the requests that are already in transit: their senders
    /// could not know otherwise that these were not started. The subscription stays open meanwhile.
    /// [`Subscriber::drain`] does not wait for messages that the server had sent before it learned
    /// of the end: async-nats 0.51 drops the subscription with the next action of the connection.
    pub(crate) async fn leave(&self, subscriptions: &mut Subscriptions, stores: &Stores) {
        let store = stores.borrow().clone();
        let quiet = if self.has_other_members() {
            QUIET
        } else {
            Duration::ZERO
        };
        let work = async {
            if let Some(store) = store {
                self.broadcast(&Broadcast::Stored(store.sequence())).await;
            }
            let leaving = true;
            self.broadcast(&Broadcast::Announcement(Announcement {
                leaving,
                ..self.own.clone()
            }))
            .await;
            while let Ok(Some(request)) = timeout(quiet, subscriptions.requests.next()).await {
                self.on_request(request, stores);
            }
            let _ = self.busy.acquire_many(BUSY).await;
            let _ = self.client.flush().await;
        };
        if timeout(LEAVING, work).await.is_err() {
            tracing::warn!("Timed out sending the last answers to other processes");
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn roster(&self) -> MutexGuard<'_, Roster> {
        self.roster.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes a request from the list of pending ones when it is dropped.
struct Listed<'a>(&'a NatsPeers, u64);

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.0.lock().remove(&self.1);
    }
}

impl Peers for NatsPeers {
    fn member(&self) -> u64 {
        self.own.member
    }

    fn request<'a>(
        &'a self,
        member: u64,
        epoch: u64,
        command: &'a Command,
    ) -> BoxFuture<'a, Result<PeerAnswer, PeerError>> {
        Box::pin(async move {
            let request = message::encode_request(epoch, command);
            if self.client.connection_state() != Connection::Connected {
                return Err(PeerError::NotDelivered);
            }
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let (answer, answered) = oneshot::channel();
            let parts = AnswerParts::default();
            self.lock().insert(number, Waiting { parts, answer });
            let _listed = Listed(self, number);
            let reply = format!("{}.{number}", self.inbox);
            let sent = self
                .client
                .publish_with_reply(to_one(&self.subject, member), reply, request);
            sent.await.map_err(|_| PeerError::NotDelivered)?;
            let answer = answered.await.unwrap_or(Err(PeerError::Unknown))?;
            // The writer may have executed a request whose answer cannot be decoded.
            message::decode_answer(&answer).map_err(|_| PeerError::Unknown)
        })
    }

    fn name_successor(&self, member: u64) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.broadcast(&Broadcast::Successor(member)).await })
    }

    fn members(&self) -> Vec<Member> {
        let mut roster = self.roster();
        // This process is a member even without a connection.
        roster.record(self.own.clone(), clock::now());
        roster.members(clock::now())
    }
}

fn to_one(subject: &str, member: u64) -> String {
    format!("{subject}.{member:016x}")
}

fn to_all(subject: &str) -> String {
    format!("{subject}.all")
}

#[cfg(test)]
mod tests;
