//! Requests and replies as values. Streams and topics go by name on every request (M1): the
//! server reuses numeric ids at once after a delete.

use std::sync::Arc;

use bytes::Bytes;

use super::record::Relay;

/// Where a poll starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollFrom {
    /// The first message with an offset at or above this one.
    Offset(u64),
    /// The earliest message the partition still has.
    First,
    /// The last `count` messages.
    Last,
}

/// Which partition a send goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendTo {
    /// This partition.
    Partition(u32),
    /// The server picks, round robin.
    Balanced,
}

/// One option of a topic, as text (kind 2 of the option list; numbers are accepted as text).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicOption {
    /// Key, as the server's option catalogue names it.
    pub key: String,
    /// Value in the server's text form.
    pub value: String,
}

/// One request. Every variant has exactly one kind of [`Reply`].
#[derive(Clone, Debug)]
pub enum Request {
    /// Code 1 → [`Reply::Done`].
    Ping,
    /// Code 12 → [`Reply::Cluster`].
    ClusterMetadata,
    /// Code 13, scope topic → [`Reply::Options`].
    DescribeTopicOptions,
    /// Code 201 → [`Reply::Streams`].
    Streams,
    /// Code 200 → [`Reply::Stream`].
    Stream {
        /// Stream name.
        stream: Arc<str>,
    },
    /// Code 301 → [`Reply::Topics`].
    Topics {
        /// Stream name.
        stream: Arc<str>,
    },
    /// Code 300 → [`Reply::Topic`].
    Topic {
        /// Stream name.
        stream: Arc<str>,
        /// Topic name.
        topic: Arc<str>,
    },
    /// Operation 128 → [`Reply::Done`]; "exists" (1012) is a server error for the caller to judge.
    CreateStream {
        /// Stream name.
        stream: Arc<str>,
    },
    /// Operation 132 → [`Reply::Topic`]; "exists" is 2013.
    CreateTopic {
        /// Stream name.
        stream: Arc<str>,
        /// Topic name.
        topic: Arc<str>,
        /// Number of partitions, 1 to 1000.
        partitions: u32,
        /// Options the server's catalogue knows.
        options: Vec<TopicOption>,
    },
    /// Operation 136 → [`Reply::Done`]. The server **adds** `add` partitions.
    CreatePartitions {
        /// Stream name.
        stream: Arc<str>,
        /// Topic name.
        topic: Arc<str>,
        /// How many to add, 1 to 1000.
        add: u32,
    },
    /// Code 100 → [`Reply::Polled`]. Never with a group, never with auto-commit.
    Poll {
        /// Stream name.
        stream: Arc<str>,
        /// Topic name.
        topic: Arc<str>,
        /// Partition, 0-based.
        partition: u32,
        /// Where to start.
        from: PollFrom,
        /// How many messages at most; the server has no byte limit.
        count: u32,
    },
    /// Code 103 → [`Reply::Primary`]; a server that does not know the code answers 3.
    Primary {
        /// Stream name.
        stream: Arc<str>,
        /// Topic name.
        topic: Arc<str>,
        /// Partition, 0-based.
        partition: u32,
    },
    /// Operation 160 → [`Reply::Sent`].
    Send {
        /// Stream name.
        stream: Arc<str>,
        /// Topic name.
        topic: Arc<str>,
        /// Partition or balanced.
        to: SendTo,
        /// The record to append.
        record: Relay,
    },
    /// Operation 3 → [`Reply::Done`].
    Logout,
}

/// The answer to a [`Request`] the server accepted.
#[derive(Clone, Debug)]
pub enum Reply {
    /// Nothing but success.
    Done,
    /// Nodes of the cluster.
    Cluster(Vec<Node>),
    /// Topic options this server knows.
    Options(Vec<OptionInfo>),
    /// All streams.
    Streams(Vec<StreamInfo>),
    /// One stream, `None` when it does not exist.
    Stream(Option<StreamInfo>),
    /// All topics of a stream, without partition rows; empty when the stream does not exist.
    Topics(Vec<TopicInfo>),
    /// One topic, `None` when it or its stream does not exist.
    Topic(Option<TopicInfo>),
    /// Batch records.
    Polled(Polled),
    /// The node that leads the partition, as far as the node asked knows.
    Primary(Node),
    /// The confirmed first offset of the batch; `None` is an empty confirmation: done or not, the
    /// position is unknown.
    Sent {
        /// Offset the server gave to the first message.
        base_offset: Option<u64>,
    },
}

/// Reply to a poll.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Polled {
    /// Partition the server answered for.
    pub partition: u32,
    /// Last committed offset; 0 both for "empty" and for "one message at offset 0".
    pub current_offset: u64,
    /// Messages in `records`.
    pub count: u32,
    /// Batch records back to back, see [`super::record::scan`].
    pub records: Bytes,
}

impl Polled {
    /// Bytes of the reply's body: one buffer that lives as long as any record refers to it.
    pub fn body_len(&self) -> u64 {
        let records = u64::try_from(self.records.len()).unwrap_or(u64::MAX);
        records.saturating_add(4 + 8 + 4)
    }
}

/// One node of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Node name.
    pub name: String,
    /// Advertised address.
    pub ip: String,
    /// Advertised TCP port.
    pub tcp_port: u16,
    /// Role 0: the metadata leader.
    pub leader: bool,
    /// Status 0.
    pub healthy: bool,
}

/// One row of the server's topic option catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionInfo {
    /// Key, for example `message_expiry`.
    pub key: String,
}

/// A stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamInfo {
    /// Name.
    pub name: String,
    /// Creation time, microseconds since the Unix epoch: the stream's identity.
    pub created_at: u64,
    /// Number of topics.
    pub topics: u32,
}

/// A topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicInfo {
    /// Name.
    pub name: String,
    /// Creation time, microseconds since the Unix epoch: the topic's identity.
    pub created_at: u64,
    /// Number of partitions.
    pub partitions_count: u32,
    /// Expiry in microseconds, `u64::MAX` never, 0 server default.
    pub message_expiry: u64,
    /// 1 none, 2 gzip.
    pub compression: u8,
    /// Bytes, `u64::MAX` unlimited, 0 server default.
    pub max_size: u64,
    /// Bytes stored; trails the appends a little.
    pub size: u64,
    /// Messages stored; trails the appends a little.
    pub messages_count: u64,
    /// Options set explicitly and derived, explicit first, as (key, text value).
    pub options: Vec<TopicOption>,
    /// Partition rows, dense from 0; empty in [`Reply::Topics`].
    pub partitions: Vec<PartitionInfo>,
}

/// A partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionInfo {
    /// 0-based id.
    pub id: u32,
    /// Creation time, microseconds since the Unix epoch.
    pub created_at: u64,
    /// Last committed offset, 0 when empty; trails the appends a little.
    pub current_offset: u64,
    /// Messages stored.
    pub messages_count: u64,
}
