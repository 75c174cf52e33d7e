-- A judge's own words on how to answer better; `is_hint` without them means that the user's words are the hint.

ALTER TABLE turn_rewards ADD COLUMN IF NOT EXISTS hint String COMMENT 'how to answer better, in words of a judge' AFTER is_hint;
