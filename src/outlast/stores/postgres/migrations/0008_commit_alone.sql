-- A plain commit that goes out alone is made by `commit_alone`, which holds and moves its session at
-- once: functions/commit.sql.
DROP FUNCTION IF EXISTS outlast.commit_one(
    text, text, text, bigint, bigint, integer, bigint, bigint, text, text, integer, bytea, integer, bytea
);
