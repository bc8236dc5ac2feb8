-- An attempt is over, the job is not (or not by this attempt): charge it and settle its quota.
-- ARGV: prefix, id, attempt, lines, usd, tokens, deployment, lane, microbatch, '1' where it was cut off by us, settle
--   arguments...; KEYS[2..]: settle keys
-- Returns {now ms, the attempt as it was charged: by this call, or by an earlier one; 1 where the board knows the job}
local c = {attempt = ARGV[3], lines = ARGV[4], usd = ARGV[5], tokens = ARGV[6], deployment = ARGV[7], lane = ARGV[8], microbatch = ARGV[9]}
local now = now_ms()
if charge(KEYS[1], ARGV[2], c, now) and ARGV[10] == '1' then redis.call('HINCRBY', KEYS[1], 'cut', 1) end
local known = redis.call('HEXISTS', KEYS[1], 'state')
if redis.call('HGET', KEYS[1], 'open') == ARGV[3] then redis.call('HDEL', KEYS[1], 'open') end
settle_rest(1, 10)
return {whole(now), redis.call('HGET', KEYS[1], 'charged:' .. c.attempt), known}
