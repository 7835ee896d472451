-- name: find_server
-- Asked on every new connection: which database system it leads to, and on which timeline. A server in
-- recovery has none of its own, and takes no writes.
SELECT (SELECT system_identifier FROM pg_control_system()),
       CASE WHEN pg_is_in_recovery() THEN 0
            ELSE ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::integer
       END;
