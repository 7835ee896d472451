-- Workers say which agents have a limit, so that whoever waits for one can be told.

ALTER TABLE outlast_workers ADD COLUMN at_once TEXT NOT NULL DEFAULT '{}';
