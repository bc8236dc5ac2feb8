-- Rebuild: an attempt that the ledger has. ARGV: prefix, id, attempt, lines, usd, tokens, deployment, lane, microbatch,
--   concluded (1 | 0), at ms, keep ms. Returns 1 | 0
local job, at = KEYS[1], tonumber(ARGV[11])
local c = {attempt = ARGV[3], lines = ARGV[4], usd = ARGV[5], tokens = ARGV[6], deployment = ARGV[7], lane = ARGV[8], microbatch = ARGV[9]}
c.concluded = ARGV[10] == '1'
local is_new = redis.call('EXISTS', job) == 0
if not count(job, c, at) then return 0 end
if is_new then redis.call('PEXPIRE', job, ARGV[12]) end
return 1
