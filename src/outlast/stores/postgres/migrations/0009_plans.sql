-- Indexes that a statement which means another cannot take by mistake: schema.sql, functions/write.sql.
DROP INDEX outlast.sessions_of_tenant;
CREATE INDEX sessions_of_tenant ON outlast.sessions (tenant, id) WHERE id <> '';
DROP INDEX outlast.tokens_living;
CREATE UNIQUE INDEX tokens_living ON outlast.tokens (token, tenant) WHERE living;
DROP INDEX outlast.tokens_dead;
CREATE INDEX tokens_dead ON outlast.tokens (token, tenant, tid) WHERE NOT living;
