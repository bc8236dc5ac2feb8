-- What a bill of a machine charges to a tenant's calls: on their jobs, and by microbatch and batch. Bills of a machine come
-- in the order of their time; one that was added already changes nothing.
-- KEYS[1]: hash, deployment|replica -> when the last bill that was added began. ARGV: prefix `{t:name}:`, deployment|replica,
--   when this one begins (ms), deployment|day, ms that sums of a microbatch and of a batch are kept, the job that the
--   machine was started for ('' none of this tenant's) and picodollars of its warm-up, then job, attempt and picodollars
--   of each call. Returns 1, or 0 when it was added before
local P = ARGV[1]
if tonumber(redis.call('HGET', KEYS[1], ARGV[2]) or '-1') >= tonumber(ARGV[3]) then return 0 end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[6])

local function add(key, usd, keep_ms)
  redis.call('HINCRBY', key, ARGV[4], usd)
  redis.call('PEXPIRE', key, keep_ms)
end

if ARGV[7] ~= '' and redis.call('HEXISTS', P .. 'job:' .. ARGV[7], 'state') == 1 then
  redis.call('HINCRBY', P .. 'job:' .. ARGV[7], 'wake', ARGV[8])
end
for i = 9, #ARGV, 3 do
  local job, usd = P .. 'job:' .. ARGV[i], ARGV[i + 2]
  local h = redis.call('HMGET', job, 'state', 'microbatch', 'batch', 'charged:' .. ARGV[i + 1])
  if h[1] then
    redis.call('HINCRBY', job, 'machine', usd)
    local microbatch = h[4] and cjson.decode(h[4]).microbatch
    if type(microbatch) ~= 'string' then microbatch = h[2] end -- it runs, or its call was made by nobody that lives
    if microbatch then add(P .. 'machines:microbatch:' .. microbatch, usd, ARGV[5]) end
    if h[3] then add(P .. 'machines:batch:' .. h[3], usd, ARGV[6]) end
  end
end
return 1
