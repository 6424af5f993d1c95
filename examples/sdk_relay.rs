//! The peer `sdk` of `tidegate bench relay`: what a user of the official SDK would write to copy a
//! topic, as well as it can be written with it.
//!
//! * 10,000 messages a poll, and while one batch is sent and its offset saved, the next is polled
//! * a task and a pair of connections for each partition: a client of the SDK has one socket
//! * messages go on as they were polled, without a copy that the SDK does not make itself
//! * explicit offsets, no sleep but while there is nothing to copy
//!
//! An example and not part of `tidegate`, so that the daemon neither links the SDK nor depends on
//! it. Build it like the program it is compared with: `cargo build --release --example sdk_relay`.
#![allow(clippy::disallowed_methods, reason = "a program of its own, with files and clocks")]

use std::error::Error;
use std::time::Duration;

use clap::Parser;
use iggy::prelude::*;

/// The daemon's allocator, as anybody may choose it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Messages of one poll, and so of one send.
const BATCH: u32 = 10_000;
/// Bytes of one poll: a request holds 64 MiB.
const BATCH_BYTES: u32 = 48 << 20;
/// Between polls of a partition that is copied to its end.
const IDLE: Duration = Duration::from_millis(1);
/// The upstream topic.
const FROM: &str = "messages";

type Failure = Box<dyn Error + Send + Sync>;

#[derive(Clone, Debug, Parser)]
struct Arguments {
    #[arg(long)]
    stream: String,
    /// At the destination.
    #[arg(long)]
    topic: String,
    #[arg(long)]
    partitions: u32,
    /// Threads.
    #[arg(long)]
    shards: usize,
    #[arg(long)]
    size: u32,
    #[arg(long)]
    record: u32,
    #[arg(long)]
    max_batch_bytes: u64,
}

fn main() -> Result<(), Failure> {
    let arguments = Arguments::parse();
    // One thread needs no other to steal from it.
    let mut builder = match arguments.shards {
        1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = builder.worker_threads(arguments.shards).enable_all().build()?;
    runtime.block_on(async {
        let copies: Vec<_> = (0..arguments.partitions)
            .map(|partition| tokio::spawn(copy(arguments.clone(), partition)))
            .collect();
        for copied in copies {
            copied.await??;
        }
        Ok(())
    })
}

async fn copy(arguments: Arguments, partition: u32) -> Result<(), Failure> {
    let (up, down) = (client("TIDEGATE_BENCH_UP").await?, client("TIDEGATE_BENCH_DOWN").await?);
    let stream = Identifier::named(&arguments.stream)?;
    let (from, to) = (Identifier::named(FROM)?, Identifier::named(&arguments.topic)?);
    let consumer = Consumer::new(Identifier::named("sdk-relay")?);
    let partitioning = Partitioning::partition_id(partition);
    let count = BATCH.min(BATCH_BYTES / (arguments.size + 48)).max(1);
    let poll = |offset: u64| {
        let strategy = PollingStrategy::offset(offset);
        let (up, stream, from, consumer) = (&up, &stream, &from, &consumer);
        async move {
            up.poll_messages(stream, from, Some(partition), consumer, &strategy, count, false).await
        }
    };
    let mut next = 0;
    let mut batch = poll(next).await?.messages;
    loop {
        let Some(last) = batch.last().map(|message| message.header.offset) else {
            tokio::time::sleep(IDLE).await;
            batch = poll(next).await?.messages;
            continue;
        };
        next = last + 1;
        let send = async {
            down.send_messages(&stream, &to, &partitioning, &mut batch).await?;
            up.store_consumer_offset(&consumer, &stream, &from, Some(partition), last).await
        };
        let (sent, polled) = tokio::join!(send, poll(next));
        sent?;
        batch = polled?.messages;
    }
}

/// A logged-in client of the server that this variable names as `user:password@host:port`.
async fn client(variable: &str) -> Result<IggyClient, Failure> {
    let text = std::env::var(variable)?;
    let (who, address) = text.rsplit_once('@').ok_or("no @ in the server's name")?;
    let (username, password) = who.split_once(':').ok_or("no password in the server's name")?;
    let client =
        IggyClient::builder().with_tcp().with_server_address(address.to_owned()).build()?;
    client.connect().await?;
    client.login_user(username, password).await?;
    Ok(client)
}
