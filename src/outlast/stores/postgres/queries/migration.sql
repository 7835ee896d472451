-- name: find_schema
-- Before anything is changed: whether the schema exists, our own table in it, and how many tables
-- in all; the default isolation of transactions; the encoding; whether there is a Holdfast store
-- under the schema name that was its default.
SELECT current_setting('server_version_num')::integer,
       to_regnamespace(quote_ident(:schema)) IS NOT NULL,
       to_regclass(quote_ident(:schema) || '.migrations') IS NOT NULL,
       (SELECT count(*)
          FROM pg_class AS c
         WHERE c.relnamespace = to_regnamespace(quote_ident(:schema))
           AND c.relkind IN ('r', 'p')),
       current_setting('default_transaction_isolation'),
       current_setting('server_encoding'),
       -- By the catalog, which every role may read.
       (SELECT count(*) = 3
          FROM pg_class AS c
          JOIN pg_namespace AS n ON n.oid = c.relnamespace
         WHERE n.nspname = 'holdfast' AND c.relname IN ('migrations', 'sessions', 'lanes'));

-- name: find_version
-- The newest migration, and whether Holdfast made the schema: its first one had this name.
SELECT max(version), bool_or(version = 1 AND name = '0001_initial.sql') FROM outlast.migrations;

-- name: prepare_migration
-- A migration takes the time that it needs, whatever limits the role has, but does not outlive its
-- process for long. Waiting for another process that migrates blocks no other work.
SELECT set_config('statement_timeout', '0', true),
       set_config('lock_timeout', '0', true),
       set_config('idle_in_transaction_session_timeout', '30s', true);

-- name: limit_locks
-- All other transactions queue behind one that waits for a table, so it waits briefly, and again.
SELECT set_config('lock_timeout', '2s', true);

-- name: lock_migration
-- One process at a time; the lock goes with the transaction.
SELECT pg_advisory_xact_lock(:class, 0);

-- name: lock_sessions
-- Every writer locks sessions first. After this lock no writer can hold another table and wait for
-- sessions, which would be a deadlock.
LOCK TABLE outlast.sessions IN ACCESS EXCLUSIVE MODE;

-- name: add_schema
CREATE SCHEMA IF NOT EXISTS outlast;

-- name: add_migration
INSERT INTO outlast.migrations (version, name) VALUES (:version, :name);
