-- Indexes that a statement which means another cannot take by mistake: schema.sql, functions/write.sql.
DROP INDEX holdfast.sessions_of_tenant;
CREATE INDEX sessions_of_tenant ON holdfast.sessions (tenant, id) WHERE id <> '';
DROP INDEX holdfast.tokens_living;
CREATE UNIQUE INDEX tokens_living ON holdfast.tokens (token, tenant) WHERE living;
DROP INDEX holdfast.tokens_dead;
CREATE INDEX tokens_dead ON holdfast.tokens (token, tenant, tid) WHERE NOT living;
