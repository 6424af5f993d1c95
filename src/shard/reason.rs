//! The reason codes of C6: what each means for the status and what an operator should do.

use super::snapshot::Status;

/// One reason code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason {
    /// Machine-readable code.
    pub code: &'static str,
    /// Status that goes with it.
    pub status: Status,
    /// What to do.
    pub advice: &'static str,
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $status:ident $code:literal, $advice:literal;)*) => {
        $($(#[$doc])* pub const $name: Reason =
            Reason { code: $code, status: Status::$status, advice: $advice };)*
        /// Every code there is.
        pub const ALL: &[Reason] = &[$($name),*];
    };
}

reasons! {
    /// Copying, or caught up.
    RUNNING = Running "", "";
    /// First connection is being made.
    CONNECTING = Starting "connecting", "";
    /// A request of a lost connection may still arrive.
    SETTLING = Starting "settling", "";
    /// Both ends are being read and compared.
    RESUMING = Starting "resuming", "";
    /// Upstream cluster does not answer.
    UPSTREAM_UNREACHABLE = Degraded "upstream_unreachable",
        "bring the upstream cluster back or correct its address; retried by itself";
    /// Destination cluster does not answer.
    DESTINATION_UNREACHABLE = Degraded "destination_unreachable",
        "bring the destination cluster back or correct its address; retried by itself";
    /// The cluster refuses the login.
    LOGIN_REFUSED = Degraded "login_refused",
        "correct the user, password or token of the cluster; retried by itself";
    /// M14.
    UNTESTED_SERVER = Degraded "untested_server",
        "run a 0.9.x server or set allow_untested_server = true on the cluster";
    /// The user lacks a permission.
    UNAUTHORIZED = Degraded "unauthorized",
        "grant the user read on the upstream topic and write on the destination topic";
    /// The upstream topic or partition is not there, or its log answers less than it held.
    WAITING_UPSTREAM = Degraded "waiting_upstream",
        "wait, or see whether the upstream topic was deleted or its server is still starting";
    /// M5: the same for longer than `reset_grace`, at a node that may lag.
    UPSTREAM_BEHIND = Degraded "upstream_behind",
        "wait if the upstream node lags, or name one that does not first in addresses; if the \
         topic was purged or put back to an older state, stop the daemon and run `tidegate state \
         reset --source … --topic …`, and set on_nonempty_destination = \"append\" to copy what is \
         there now behind what was copied";
    /// The destination topic or partition is not there.
    WAITING_DESTINATION = Degraded "waiting_destination",
        "create the destination topic with as many partitions as upstream, or set \
         auto_create = true";
    /// The destination answers less than it acked; it may be starting.
    DESTINATION_NOT_READY = Degraded "destination_not_ready",
        "wait: the destination is read again until its end is stable";
    /// The destination refuses for now.
    NOT_ACCEPTED = Degraded "not_accepted",
        "see whether the destination cluster has a leader; retried by itself";
    /// M13, M15: sends stay unanswered, reads do not.
    UNANSWERED = Degraded "unanswered",
        "see why the destination answers no sends; retried by itself. If it takes messages of \
         others, the one named may be the cause: compare it with what the destination allows";
    /// Nothing moved for `degraded_after`.
    STALLED = Degraded "stalled", "see the destination's load and the last error";
    /// M14: what a cluster advertises leads elsewhere.
    FOREIGN_NODE = Running "foreign_node",
        "correct the address that the cluster's nodes advertise, or name every node in addresses; \
         meanwhile the configured addresses are used";
    /// G6: partitions appeared that the buffers were not made for.
    BUFFERS_SHORT = Running "buffers_short",
        "raise max_buffered_bytes to the value named, or lower shards, and restart; until then the \
         feeds of this shard read in small pieces and memory may pass the bound";
    /// S3.
    DISK_FULL = Degraded "disk_full", "free space in state_dir; resumes by itself";
    /// S3.
    SAVE_FAILED = Degraded "save_failed",
        "see the error and the disk under state_dir; retried with a new file";
    /// M5, policy `fail`.
    OFFSET_EXPIRED = Error "offset_expired",
        "retention was faster than the copy; set on_offset_expired = \"earliest_available\" and \
         restart to go on behind the gap";
    /// M5, policy `fail`.
    HISTORY_CHANGED = Error "history_changed",
        "the upstream topic is another one; set on_history_changed = \"restart\" and restart to \
         copy it from its first message";
    /// M6: never papered over.
    DIVERGED = Error "diverged",
        "somebody else writes to the destination partition, or it lost messages in the middle; \
         find out who, then stop the daemon and run `tidegate state rebuild --source … --topic … \
         --partition …`: it finds the place where the copy goes on, or says what to name with \
         --accept-tail";
    /// I1: a record that does not follow the last one is not sent.
    OUT_OF_ORDER = Error "out_of_order",
        "nothing is lost: restart the source and it reads its position from the destination; \
         please report it, with the log before the stop";
    /// M6, policy `fail`.
    DESTINATION_LOST = Error "destination_lost",
        "the destination topic was deleted or replaced; restore it, or set \
         on_destination_lost = \"refill\" and restart to copy everything again; a topic restored \
         from a backup is recognized by `tidegate state rebuild --source … --topic …`, with the \
         daemon stopped";
    /// M6, policy `fail`.
    NONEMPTY_DESTINATION = Error "nonempty_destination",
        "the destination has messages and there is no saved position; if they are this copy's, \
         stop the daemon and run `tidegate state rebuild --source …`; else set \
         on_nonempty_destination = \"append\" or empty it";
    /// M15, policy `fail`.
    BAD_RECORD = Error "bad_record",
        "the message at this offset cannot be copied; remove it upstream, or stop the daemon and \
         go on behind it: `tidegate state rebuild --source … --topic … --partition … \
         --accept-tail <its offset + 1>` leaves a gap record";
    /// M8, policy `fail`.
    MISSING_UPSTREAM = Error "missing_upstream",
        "create the upstream topic, or set on_missing_upstream = \"wait\", and restart";
    /// M12: both clusters are one server, and both names one topic.
    ONTO_ITSELF = Error "onto_itself",
        "correct the addresses of the clusters, or rename with to_stream or to_topic, and restart";
    /// The destination refuses to create or grow a topic.
    CREATE_REFUSED = Degraded "create_refused",
        "create the destination topic by hand with as many partitions as upstream, or correct \
         what the server names; retried by itself";
    /// S2, policy `fail`.
    STATE_UNREADABLE = Error "state_unreadable",
        "restore the state file from a backup; the positions of a mirror can be read back with \
         the daemon stopped, by `tidegate state rebuild --source …`; on_corrupt_state = \"reset\" \
         and a restart begin as if new";
    /// A capture looks at its slot and publication.
    SETTING_UP = Starting "setting_up", "";
    /// The server ended the replication stream.
    UPSTREAM_ENDED_STREAM = Degraded "upstream_ended_stream",
        "see the database's log; retried by itself";
    /// The database is shutting down and waits for us.
    UPSTREAM_STOPPING = Degraded "upstream_stopping",
        "let the database stop; the capture goes on when it is back";
    /// Bytes of the server that do not fit together; another session may bring better ones.
    UPSTREAM_PROTOCOL = Degraded "upstream_protocol", "retried by itself; report it if it stays";
    /// The server sends what this version cannot take, and will again.
    UPSTREAM_UNSUITED = Error "upstream_unsuited",
        "change what the detail names, then restart the source";
    /// No TLS session with the database.
    TLS_FAILED = Degraded "tls_failed",
        "correct sslmode, sslrootcert or the server's certificate; retried by itself";
    /// A spill file cannot be written or read.
    SPILL_FAILED = Degraded "spill_failed",
        "free space in state_dir or set streaming = \"off\"; retried by itself";
    /// P6.
    ROUTING_COLUMN_MISSING = Error "routing_column_missing",
        "name the table in by_table, or change the routing of the source, and restart: rows that \
         were written without the column stay without it; put it back for the rows to come";
    /// P4.
    PAYLOAD_COLUMN = Error "payload_column",
        "correct payload_column or payload_format, then restart the source";
    /// A change larger than any message.
    ROW_TOO_LARGE = Error "row_too_large",
        "stop the daemon, advance the slot past the transaction that the detail names, and start \
         once with --accept-gap: its rows are lost; leave the column out of the publication for \
         rows to come";
    /// A4.
    DESTINATION_REFUSED = Degraded "destination_refused",
        "correct the routing, admit the destination or raise max_destinations, or abandon the \
         batch; the detail names a row that waits";
    /// A4, R6.
    NO_DESTINATION = Degraded "no_destination",
        "give the source a default destination, or set on_missing_destination";
    /// A6.
    CIRCUIT_OPEN = Degraded "circuit_open",
        "see what the destination refuses; tried again by itself after cool_down";
    /// A8.
    DESTINATION_LOST_TAIL = Degraded "destination_lost_tail",
        "the destination lost messages it had acked; give it durability = \"persisted\" and fill \
         in what is missing";
    /// A9.
    NOT_DURABLE = Degraded "not_durable",
        "make the topic with durability = \"persisted\", or set require_durable = \"warn\"";
    /// A capture cannot start for a reason that passes; the detail says which.
    CAPTURE_WAITING = Degraded "capture_waiting", "see the detail; retried by itself";
    /// A capture cannot start; the detail says why and what to do.
    CAPTURE_REFUSED = Error "capture_refused", "see the detail, then restart the source";
    /// By the operator's word (T2).
    PAUSED = Stopped "paused", "resume it: POST /sources/<key>/resume";
    /// T2: whether an operator paused it cannot be seen.
    PAUSE_UNKNOWN = Error "pause_unknown",
        "make the marker file readable, then POST /sources/<key>/resume or pause";
    /// Drained.
    DRAINED = Stopped "drained", "";
    /// Draining.
    DRAINING = Stopping "draining", "";
}

/// The reason for a destination that keeps messages, by the word it says itself with.
pub fn of_destination(word: &str) -> Reason {
    match word {
        "circuit_open" => CIRCUIT_OPEN,
        "no_destination" => NO_DESTINATION,
        "not_durable" => NOT_DURABLE,
        "destination_lost_tail" => DESTINATION_LOST_TAIL,
        "waiting_destination" => WAITING_DESTINATION,
        _ => DESTINATION_REFUSED,
    }
}
