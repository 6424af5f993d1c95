//! One connection's protocol state: login, request numbers, matching of replies.
