-- Workers say which agents have a limit, so that whoever waits for one can be told.

ALTER TABLE outlast.workers ADD COLUMN at_once jsonb NOT NULL DEFAULT '{}';
